// Attention over a sequence that is split over the ranks of an axis: each rank keeps its queries and sees the keys and
// values of all, one rank's after another's; what it makes of each is merged by the logs of the sums (Liu et al., Ring
// attention with blockwise transformers, 2023). At any time a rank holds its own keys and values and one other's, which
// come from where they belong, in a rotate, and so do their gradients go home.
//
// Causal attention wants the sequence in zig-zag (ir/sharding.h): of stretches A (early) and B (late) that a rank has,
// B sees all of an earlier rank's A and of a later rank's A and B, and A sees an earlier rank's A alone:
//
//   keys of an earlier rank    B x A and A x A
//   keys of a later rank       B x A and B x B
//
// So every rank does two squares for each other rank, nothing of them masked: the work of one device, in equal parts.
#pragma once

#include <vector>

#include "passes/partition/ranks.h"

namespace stepc {

// Whether the node is an attention or the gradients of one.
bool attends(const Node& node);

// The positions of an attention's operands: queries, then keys and values, and the mask, if it has one.
struct AttentionPlaces {
  bool is_backward = false;
  size_t q = 0, mask = 3;
};
AttentionPlaces attention_places(const Node& attention);

// The axis that splits the keys of `node` along their sequence; nullopt: the node is no attention, or no axis does.
std::optional<Axis> ring_axis(const Graph& whole, const Node& node);

// The results of such a node on one rank. `operands`: this rank's.
std::vector<TensorId> around_ring(GraphBuilder& b, RankBuilder& ranks, const Graph& whole, const Node& node, Axis axis,
                                  const std::vector<TensorId>& operands);

}  // namespace stepc
