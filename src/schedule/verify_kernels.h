// Checks what kernels rely on beyond verify(): operands have the types, sizes and layouts, and scratch memory has the
// size, with which each kernel was chosen. Kernels check nothing, and a Schedule's text may come from anywhere.
#pragma once

#include "schedule/schedule.h"

namespace stepc {

// For a Schedule that passes verify(). Throws InternalError that names the first broken promise.
void verify_kernels(const Schedule& schedule);

}  // namespace stepc
