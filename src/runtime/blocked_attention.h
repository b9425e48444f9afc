// Attention on our own blocked kernels.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "blocked/micro_kernels.h"
#include "ir/graph.h"

namespace stepc {

// Runs an "attention" or "attention_backward" node. nullopt: not for these operands (another element type, also of the
// mask), and ATen's kernel runs them.
std::optional<std::vector<at::Tensor>> run_blocked_attention(const Node& node, const std::vector<at::Tensor>& x,
                                                             const blocked::MicroKernels& kernels);

// The scratch memory of that for `threads`, on operands that need not have memory.
uint64_t blocked_attention_scratch(const Node& node, const std::vector<at::Tensor>& x,
                                   const blocked::MicroKernels& kernels, int threads);

// Results with heads are laid out (batch, sequence, heads, dim), as the projections around attention read and write
// them; other results are contiguous.
Shape attention_strides(const Shape& shape);

}  // namespace stepc
