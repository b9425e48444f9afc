// The allocations of eager PyTorch for a step on a GPU, as far as calls captured on the CPU show them.
#pragma once

#include "cost/features.h"
#include "ir/trace.h"

namespace stepc {

// The trace with a GPU's allocations. Tensors live as recorded; in a step that was captured without running it, from
// the call that makes them to the last that names them. Workspaces of the CPU's kernels are removed; those of cuBLAS
// and of attention's backward pass are added.
Trace with_gpu_allocations(Trace trace, const Features& features);

}  // namespace stepc
