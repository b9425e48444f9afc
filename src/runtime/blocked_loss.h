// Linear + cross-entropy on our own blocked kernel.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "blocked/micro_kernels.h"
#include "ir/graph.h"

namespace stepc {

// Runs a "linear_cross_entropy" node. nullopt: not for these operands (another element type, or one that this machine
// has no micro-kernel for), and ATen runs it with all its logits.
std::optional<std::vector<at::Tensor>> run_blocked_loss(const Node& node, const std::vector<at::Tensor>& x,
                                                        const blocked::MicroKernels& kernels);

// The scratch memory of that for `threads`, on operands that need not have memory.
uint64_t blocked_loss_scratch(const Node& node, const std::vector<at::Tensor>& x, const blocked::MicroKernels& kernels,
                              int threads);

}  // namespace stepc
