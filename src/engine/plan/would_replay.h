// Whether a replay of a plan would have run to the end of a step that has just run eagerly.
#pragma once

#include "ir/trace.h"

namespace stepc {

// `now` is what the step did: a replay of `planned` would have read the numbers that it is held to, and its optimizers
// would have made the recorded calls.
bool would_replay(const Trace& planned, const Trace& now);

}  // namespace stepc
