// The memory of the step in eager mode, beside the program's own tensors.
#pragma once

#include <cstdint>

#include "ir/trace.h"

namespace stepc {

// The largest sum of live bytes that the recorded calls reached. For a step that was never run, whose allocations are
// unknown: the least that its tensors take, without workspaces.
uint64_t eager_peak_bytes(const Trace& trace);

}  // namespace stepc
