// A group whose nodes run as ATen calls, one a node, on a chunk of the elements at a time: what lies between the
// calls takes the memory of a chunk. Pointwise nodes on tensors of one size and on single values, and reductions of
// all elements, of which each chunk gives a part.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/graph.h"

namespace stepc {

inline constexpr int64_t kElementsOfChunk = int64_t{1} << 16;

// The group (extract_groups()), every tensor of it of one dimension or of none; nullopt: it is no such group.
std::optional<Graph> flat_nodes(Graph group);
// By node of such a group: what the nodes made that nobody reads behind it; then what is left at the end.
std::vector<std::vector<TensorId>> dead_after(const Graph& flat);
// What is at most between the calls on a chunk, each tensor aligned, and as much as the widest for what a call keeps
// to itself.
uint64_t bytes_between(const Graph& flat);

}  // namespace stepc
