// What ATen and blocked kernels need beside their operands and results: the shapes of their results in memory, whether
// they write in place, and a declared bound of their scratch memory, so that a plan has room for it before it runs.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "blocked/micro_kernels.h"
#include "ir/graph.h"

namespace stepc {

// In elements: contiguous, but where a kernel writes another layout that its readers want.
Shape result_strides(const Node& node, const TensorType& type);

// Whether the node's call writes its first (or written) operands' new contents where they lie; others read all of their
// operands before they write.
bool writes_in_place(const Node& node);

// `inputs` have the operands' sizes and strides, and no memory. What a kernel needs beyond this is found in the first
// run (GraphExecutable).
uint64_t aten_scratch_bytes(const Graph& graph, const Node& node, const std::vector<at::Tensor>& inputs,
                            const blocked::MicroKernels& kernels, int threads);

}  // namespace stepc
