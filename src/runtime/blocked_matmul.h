// Products of two matrices on our own blocked kernel, where it is the faster one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "blocked/micro_kernels.h"
#include "ir/graph.h"

namespace stepc {

// Where the blocked product beats LibTorch's, from benchmarks/matmul_benchmark: bf16 wherever its micro-kernel is; f32
// where LibTorch's library is not at home. A left operand that lies turned is copied first: not a huge one.
struct MatmulRule {
  bool bf16 = false, f32 = false;
  int64_t most_turned_bytes = int64_t{16} << 20;
};
MatmulRule matmul_rule(const blocked::MicroKernels& kernels);

struct ProductCall {
  const Node* node;  // a "matmul"
  std::vector<at::Tensor> operands;
};

// Runs products of one left operand as one call and gives their results. nullopt: not for these operands, and ATen's
// are called.
std::optional<std::vector<at::Tensor>> run_blocked_products(std::span<const ProductCall> calls,
                                                            const blocked::MicroKernels& kernels);
// The scratch memory of that for `threads`, on operands that need not have memory.
uint64_t blocked_products_scratch(std::span<const ProductCall> calls, const blocked::MicroKernels& kernels,
                                  int threads);

// The same for one product.
std::optional<std::vector<at::Tensor>> run_blocked_matmul(const Node& node, const std::vector<at::Tensor>& x,
                                                          const blocked::MicroKernels& kernels);
uint64_t blocked_matmul_scratch(const Node& node, const std::vector<at::Tensor>& x,
                                const blocked::MicroKernels& kernels, int threads);

}  // namespace stepc
