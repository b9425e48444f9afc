// What kernels count on beyond verify(): that operands have the types, sizes and layouts, and scratch the room, with
// which each kernel was chosen. Kernels check nothing, and a Schedule's text may come from anywhere.
#pragma once

#include "schedule/schedule.h"

namespace stepc {

// For a Schedule that passes verify(). Throws InternalError that names the first broken promise.
void verify_kernels(const Schedule& schedule);

}  // namespace stepc
