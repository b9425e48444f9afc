// This machine's micro-kernels: LibTorch's products of blocks (at::native::cpublas::brgemm) and its thread pool, as the
// function pointers that the blocked kernels take, and as plain data for planning.
#pragma once

#include "blocked/micro_kernels.h"
#include "cost/features.h"

namespace stepc {

// The micro-kernels that exist here and compute right; every call gives the same answer.
blocked::MicroKernels probe_micro_kernels();

Features features_of(const blocked::MicroKernels& kernels);

}  // namespace stepc
