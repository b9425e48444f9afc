// What eager PyTorch would allocate for a step on a GPU, as far as calls captured on the CPU tell.
#pragma once

#include "cost/features.h"
#include "ir/trace.h"

namespace stepc {

// The trace with other allocations. Tensors are those that were recorded or, of a step that was captured without
// running it, live from the call that makes them to the last that names them. Workspaces of the CPU's kernels go; those
// of cuBLAS and of the backward pass of attention come.
Trace with_gpu_allocations(Trace trace, const Features& features);

}  // namespace stepc
