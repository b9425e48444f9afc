// Rewrites a step before it is spread over devices, so that less is sent. Changes results only by rounding.
#pragma once

#include "passes/partition/strategy.h"

namespace stepc {

// Elementwise work on every part of a concatenation moves behind it: the norms of all parameters are then one vector,
// summed over the ranks at once. Sums of matmul results are added to each other before anything else is added: they are
// then one sum to reduce. If the sequence is split over cp and keys are gathered, the queries' position limit becomes a
// mask. If classes are split over tp, a gradient's sum over them becomes the label's (ops/one_hot.h). If the batch is
// split, batch norm becomes core ops: its statistics cover all ranks' rows.
Graph prepare_for_ranks(const Graph& graph, const Strategy& strategy);

}  // namespace stepc
