// Finds calls that add in an order that differs from run to run: a GPU's kernels with atomic additions. A step with
// such a call is not reproducible bit by bit, so its replays are compared with eager within rounding.
#pragma once

#include <string>

#include "ir/trace.h"

namespace stepc {

// The operator of the first such call in the trace. Empty: there is none, and the step is reproducible bit by bit.
// `deterministic`: torch.use_deterministic_algorithms() is on, so no kernel adds in this way.
std::string adds_in_any_order(const Trace& trace, bool deterministic);

}  // namespace stepc
