// Which calls add up in an order that no two runs share: a GPU's kernels that add with atomic operations. A step with
// such a call does not come to the same bits twice, so its replays are compared with eager within rounding.
#pragma once

#include <string>

#include "ir/trace.h"

namespace stepc {

// The operator of the first such call in the trace. Empty: there is none, and the step is reproducible bit by bit.
// `deterministic`: torch.use_deterministic_algorithms() is on, so no kernel adds in this way.
std::string adds_in_any_order(const Trace& trace, bool deterministic);

}  // namespace stepc
