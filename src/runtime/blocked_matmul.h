// Products of two matrices on our own blocked kernel, where it is the faster one.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "blocked/matmul.h"
#include "blocked/micro_kernels.h"
#include "ir/graph.h"
#include "ops/product_rule.h"

namespace stepc {

// Where the blocked product beats LibTorch's, from benchmarks/matmul_benchmark: bf16 wherever its micro-kernel is; f32
// where LibTorch's library is not at home.
ProductRule product_rule(const blocked::MicroKernels& kernels);

// A "matmul" as the blocked kernel takes it; no data yet.
struct BoundMatmul {
  blocked::Number type = blocked::Number::kF32;
  int64_t m = 0, n = 0, k = 0;
  blocked::Operand a, b;
};
// nullopt: not for these operands, which need not have memory.
std::optional<BoundMatmul> bind_matmul(const Node& node, const std::vector<at::Tensor>& x,
                                       const blocked::MicroKernels& kernels);

// Runs `node`; nullopt: ATen's product is called.
std::optional<std::vector<at::Tensor>> run_blocked_matmul(const Node& node, const std::vector<at::Tensor>& x,
                                                          const blocked::MicroKernels& kernels);
// The scratch memory of that for `threads`, on operands that need not have memory.
uint64_t blocked_matmul_scratch(const Node& node, const std::vector<at::Tensor>& x,
                                const blocked::MicroKernels& kernels, int threads);

}  // namespace stepc
