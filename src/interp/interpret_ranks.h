// The reference interpreter for one rank's step: all ranks of its mesh run it in lockstep, each on its own parts.
#pragma once

#include <functional>
#include <vector>

#include "interp/array.h"
#include "interp/interpret.h"
#include "ir/graph.h"

namespace stepc {

// The part of a whole tensor that a rank holds. Padding repeats the last element. Of a sum over an axis the first rank
// along it has all, the others 0.
Array local_of(const Array& whole, const Sharding& sharding, const Mesh& mesh, int64_t rank);
// The whole of what the ranks hold: padding is dropped, what is repeated is taken of one rank, what is partial reduced.
Array whole_of(const std::vector<Array>& parts, const Sharding& sharding, const Shape& shape, const Mesh& mesh);

// `inputs`: by rank, in the order of graph.inputs; a mesh input may be left empty. Gives by rank the tensors of
// graph.outputs. Host code is refused by name, and opaque ATen nodes that the caller does not run.
std::vector<std::vector<Array>> interpret_ranks(const Graph& graph, std::vector<std::vector<Array>> inputs,
                                                const AtenCallFn& aten = {});

// The same on parts of whole tensors: `input` gives the one of a graph input; gives the wholes of graph.outputs, an
// empty Array for those without a tensor. InternalError where ranks that hold the same element disagree on it.
std::vector<Array> interpret_on_ranks(const Graph& graph, const std::function<Array(const GraphInput&)>& input,
                                      const AtenCallFn& aten = {});

// One rank's step against the whole one on the same random inputs: the largest |a - b| / (1 + |b|) of any output.
// Floating-point inputs are from -0.5 to 0.5, optimizer state from 0 to 1, integers 0 or 1. Both want to be made of a
// step in_double(), before any pass: passes compute constants in the step's own dtypes.
double largest_error_on_ranks(const Graph& whole, const Graph& local, uint64_t seed);

}  // namespace stepc
