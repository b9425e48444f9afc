// partition: from a whole step whose tensors have shardings to the step of one rank, with the same text for all ranks:
// each tensor becomes the rank's part, a reshard its collectives, and the rank's position on the mesh an input.
// Dimensions that do not divide are padded; before a reduction the padding holds a neutral value.
#pragma once

#include "passes/partition/shardings/propagate_shardings.h"
#include "passes/partition/strategy.h"

namespace stepc {

// `sharded`: a result of propagate_shardings(). The inputs and outputs of the local graph say which parts they are.
Graph partition(const Graph& sharded);

// Later plans with this strategy get the shardings that the parameters have in this rank's Graph.
void keep_parameters(Strategy& strategy, const Graph& local);

}  // namespace stepc
