// Attention on our own blocked kernels.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "blocked/micro_kernels.h"
#include "ir/graph.h"

namespace stepc {

// Runs an "attention" or "attention_backward" node. nullopt: not for these operands (another element type, heads whose
// elements do not lie side by side), and ATen's kernel runs them.
std::optional<std::vector<at::Tensor>> run_blocked_attention(const Node& node, const std::vector<at::Tensor>& x,
                                                             const blocked::MicroKernels& kernels);

}  // namespace stepc
