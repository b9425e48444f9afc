// What `causal` of an attention says, as its mask operand: for whoever takes queries out of their place.
#pragma once

#include <optional>
#include <vector>

#include "ops/graph_builder.h"

namespace stepc {

// The call of `node` on `inputs` with a mask of (1, 1, queries, keys), 0 where a query sees a key, else -inf, and
// `causal` false: its results. nullopt: `node` is no attention, or sees all keys.
std::optional<std::vector<TensorId>> with_causal_mask(GraphBuilder& b, const Node& node, std::vector<TensorId> inputs);

}  // namespace stepc
