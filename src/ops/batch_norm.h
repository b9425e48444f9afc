// ATen's batch norm, which couples the rows of a batch: written in core ops, whose sums may run over ranks, as the
// opaque call of one rank may not.
#pragma once

#include <optional>
#include <vector>

#include "ops/graph_builder.h"

namespace stepc {

// What `node` of `graph` makes of `inputs`, in its order, the running statistics' new contents with it. Statistics are
// computed in f32, or f64 where that is given, as the call has them. nullopt: it is no batch norm, nor its derivative.
std::optional<std::vector<TensorId>> batch_norm_in_core_ops(GraphBuilder& b, const Graph& graph, const Node& node,
                                                            const std::vector<TensorId>& inputs);

}  // namespace stepc
