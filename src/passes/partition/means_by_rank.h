// Where a loss is the mean of the ranks' means (Strategy::means_by_rank) a rank's batch is its own rows, and what it
// computes of them is its own until a gradient leaves the backward pass, or a number the step: there stands an
// `average` over the ranks along the data axes. To propagation what is a rank's own lies whole on each of them.
#pragma once

#include <vector>

#include "passes/partition/strategy.h"

namespace stepc {

// The axes along which ranks have rows of their own.
std::vector<Axis> data_axes(const Mesh& mesh);

// The step with those nodes; as it is where the strategy does not say so. UserError for what has no one value then.
Graph average_what_leaves(const Graph& graph, const Strategy& strategy);

// A reshard that makes of the ranks' own values parts of a sum, which is their mean.
bool averages(const Node& node);

// By tensor: whether each rank has a value of its own. `graph`: of the former.
std::vector<bool> own_to_ranks(const Graph& graph, const Strategy& strategy);

}  // namespace stepc
