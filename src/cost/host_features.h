// The features of the machine that this runs on, by its CPU alone: for whoever plans without LibTorch.
#pragma once

#include "cost/features.h"

namespace stepc {

// With AVX-512 the micro-kernels of a LibTorch on this machine are taken to be there; that they are, and are right,
// only a call of them says (runtime/micro_kernels.h).
Features host_features();

}  // namespace stepc
