// partition: from a whole step whose tensors have shardings to the step of one rank, the same text for all of them:
// each tensor is the rank's part, a reshard its collectives, and where the rank stands on the mesh is an input. What
// does not divide is padded; before a reduction the padding holds what the reduction leaves as it is.
#pragma once

#include "passes/partition/shardings/propagate_shardings.h"
#include "passes/partition/strategy.h"

namespace stepc {

// `sharded`: a result of propagate_shardings(). The inputs and outputs of the local graph say which parts they are.
Graph partition(const Graph& sharded);

// Later plans with this strategy get the shardings that the parameters have in this rank's Graph.
void keep_parameters(Strategy& strategy, const Graph& local);

}  // namespace stepc
