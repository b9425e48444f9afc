// The reference interpreter for one rank's step: all ranks of its mesh run it in lockstep, each on its own parts.
#pragma once

#include <vector>

#include "interp/array.h"
#include "interp/interpret.h"
#include "ir/graph.h"

namespace stepc {

// The part of a whole tensor that a rank holds. Padding repeats the last element. Partial tensors have no parts.
Array local_of(const Array& whole, const Sharding& sharding, const Mesh& mesh, int64_t rank);
// The whole of what the ranks hold: padding is dropped, what is repeated is taken of one rank, what is partial reduced.
Array whole_of(const std::vector<Array>& parts, const Sharding& sharding, const Shape& shape, const Mesh& mesh);

// `inputs`: by rank, in the order of graph.inputs; a mesh input may be left empty. Gives by rank the tensors of
// graph.outputs. Host code is refused by name, and opaque ATen nodes that the caller does not run.
std::vector<std::vector<Array>> interpret_ranks(const Graph& graph, std::vector<std::vector<Array>> inputs,
                                                const AtenCallFn& aten = {});

}  // namespace stepc
