// Nodes that run on our own blocked kernels (blocked/), where these are for their operands.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "blocked/micro_kernels.h"
#include "ir/graph.h"

namespace stepc {

// Runs `node`; nullopt: it has no such kernel, or none for these operands.
std::optional<std::vector<at::Tensor>> run_blocked(const Node& node, const std::vector<at::Tensor>& x,
                                                   const blocked::MicroKernels& kernels);

// The scratch memory of that for `threads`, on operands that need not have memory.
uint64_t blocked_scratch_bytes(const Node& node, const std::vector<at::Tensor>& x, const blocked::MicroKernels& kernels,
                               int threads);

}  // namespace stepc
