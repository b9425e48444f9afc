// The features of this machine, from its CPU only: for planning without LibTorch.
#pragma once

#include "cost/features.h"

namespace stepc {

// If the CPU has AVX-512, LibTorch's micro-kernels on this machine are assumed to exist. Only a call of them shows that
// they do and that they are right (runtime/micro_kernels.h).
Features host_features();

}  // namespace stepc
