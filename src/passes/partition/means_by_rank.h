// If a loss is the mean of the ranks' means (Strategy::means_by_rank), a rank's batch is its own rows, and everything
// computed from these belongs to the rank until a gradient leaves the backward pass or a number leaves the step. An
// `average` over the ranks along the data axes stands there. For propagation, a rank's own value counts as whole on
// each rank.
#pragma once

#include <vector>

#include "passes/partition/strategy.h"

namespace stepc {

// The axes along which ranks have rows of their own.
std::vector<Axis> data_axes(const Mesh& mesh);

// The step with these nodes; unchanged if the strategy does not ask for them. Throws UserError for a result that has no
// single value then.
Graph average_what_leaves(const Graph& graph, const Strategy& strategy);

// Whether the node is a reshard that turns the ranks' own values into parts of a sum, which is their mean.
bool averages(const Node& node);

// By tensor: whether each rank has a value of its own. `graph`: a result of average_what_leaves().
std::vector<bool> own_to_ranks(const Graph& graph, const Strategy& strategy);

}  // namespace stepc
