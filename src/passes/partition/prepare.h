// What is written anew in a step before it is spread over devices, so that less is sent: nothing changes but rounding.
#pragma once

#include "passes/partition/strategy.h"

namespace stepc {

// Elementwise work on every part of a concatenation is done behind it: the norms of all parameters are then one vector,
// summed over the ranks at once. Sums of matmuls' results are added to each other before they are added to anything
// else: they are then one sum to reduce. Where the sequence is split over cp and keys are gathered, what queries see by
// their place is a mask. Where classes are split over tp, a gradient's sum over them is the label's (ops/one_hot.h).
// Where the batch is split, batch norm is core ops: its statistics are those of all ranks' rows.
Graph prepare_for_ranks(const Graph& graph, const Strategy& strategy);

}  // namespace stepc
