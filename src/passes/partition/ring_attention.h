// Attention over a sequence that is split over the ranks of an axis. Each rank keeps its queries and uses the keys and
// values of one rank after another; the results are merged by the logs of the sums (Liu et al., Ring attention with
// blockwise transformers, 2023). At any time a rank holds its own keys and values and those of one other rank, which it
// gets directly from their owner by a rotate; their gradients return in the same way.
//
// Causal attention needs the sequence in zig-zag (ir/sharding.h). Each rank has two ranges, A (early) and B (late). B
// sees all of an earlier rank's A and of a later rank's A and B; A sees only an earlier rank's A:
//
//   keys of an earlier rank    B x A and A x A
//   keys of a later rank       B x A and B x B
//
// So every rank computes two squares for each other rank, without any mask: the work of one device, in equal parts.
#pragma once

#include <vector>

#include "ops/attention_operands.h"
#include "passes/partition/ranks.h"

namespace stepc {

// The axis that splits the keys of `node` along their sequence; nullopt: the node is no attention, or no axis does.
std::optional<Axis> ring_axis(const Graph& whole, const Node& node);

// The results of such a node on one rank. `operands`: this rank's.
std::vector<TensorId> around_ring(GraphBuilder& b, RankBuilder& ranks, const Graph& whole, const Node& node, Axis axis,
                                  const std::vector<TensorId>& operands);

}  // namespace stepc
