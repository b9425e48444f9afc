#include "runtime/blocked_matmul.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "blocked/matmul.h"
#include "ir/alignment.h"
#include "runtime/blocked_operands.h"

namespace stepc {

namespace {
using at::Tensor;

struct BoundMatmul {
  blocked::Number type = blocked::Number::kF32;
  int64_t m = 0, n = 0, k = 0;
  blocked::Operand a, b;

  [[nodiscard]] blocked::Product product(void* result) const { return {n, b, false, {result, type, n}, {}}; }
};

// As it lies or turned; every row or every column is side by side.
std::optional<blocked::Operand> operand(const Tensor& x, bool transposed) {
  if (x.stride(0) != 1 && x.stride(1) != 1) return std::nullopt;
  blocked::Operand read{nullptr, x.stride(0), x.stride(1)};
  if (transposed) std::swap(read.row_stride, read.column_stride);
  return read;
}

std::optional<BoundMatmul> bind(const Node& node, const std::vector<Tensor>& x, const blocked::MicroKernels& kernels) {
  const MatmulRule rule = matmul_rule(kernels);
  const std::optional<blocked::Number> number = number_of(x[0].scalar_type());
  if (!number || !(*number == blocked::Number::kF32 ? rule.f32 : rule.bf16)) return std::nullopt;
  if (x[0].dim() != 2 || x[0].numel() == 0 || x[1].numel() == 0) return std::nullopt;
  const bool turn_a = node.attrs.get<bool>("transpose_a");
  const bool turn_b = node.attrs.get<bool>("transpose_b");
  const auto a = operand(x[0], turn_a);
  const auto b = operand(x[1], turn_b);
  if (!a.has_value() || !b.has_value()) return std::nullopt;
  if (a->column_stride != 1 && static_cast<int64_t>(x[0].nbytes()) > rule.most_turned_bytes) return std::nullopt;
  return BoundMatmul{*number, x[0].size(turn_a ? 1 : 0), x[1].size(turn_b ? 0 : 1), x[0].size(turn_a ? 0 : 1), *a, *b};
}

// All of them, or none.
std::vector<BoundMatmul> bind_all(std::span<const ProductCall> calls, const blocked::MicroKernels& kernels) {
  std::vector<BoundMatmul> all;
  for (const ProductCall& call : calls) {
    const std::optional<BoundMatmul> bound = bind(*call.node, call.operands, kernels);
    if (!bound.has_value()) return {};
    all.push_back(*bound);
  }
  return all;
}

blocked::Matmul as_one(const std::vector<BoundMatmul>& all, const std::vector<blocked::Product>& products) {
  const BoundMatmul& first = all.front();
  return {first.type, 1, first.m, first.k, first.a, products, {}};
}
}  // namespace

MatmulRule matmul_rule(const blocked::MicroKernels& kernels) {
  return {kernels.bf16 && kernels.avx512, kernels.f32 && kernels.avx512 && !kernels.intel};
}

uint64_t blocked_products_scratch(std::span<const ProductCall> calls, const blocked::MicroKernels& kernels,
                                  int threads) {
  const std::vector<BoundMatmul> all = bind_all(calls, kernels);
  if (all.empty()) return 0;
  std::vector<blocked::Product> products;
  for (const BoundMatmul& bound : all) products.push_back(bound.product(nullptr));
  return aligned(blocked::workspace_bytes(as_one(all, products), threads));
}

std::optional<std::vector<Tensor>> run_blocked_products(std::span<const ProductCall> calls,
                                                        const blocked::MicroKernels& kernels) {
  std::vector<BoundMatmul> all = bind_all(calls, kernels);
  if (all.empty()) return std::nullopt;
  all[0].a.data = calls[0].operands[0].const_data_ptr();
  std::vector<Tensor> results;
  std::vector<blocked::Product> products;
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].b.data = calls[i].operands[1].const_data_ptr();
    results.push_back(at::empty({all[i].m, all[i].n}, calls[i].operands[0].options()));
    products.push_back(all[i].product(results.back().mutable_data_ptr()));
  }
  const blocked::Matmul call = as_one(all, products);
  const int threads = at::get_num_threads();
  const Tensor scratch = workspace(blocked::workspace_bytes(call, threads));
  blocked::matmul(call, kernels, threads, memory_of(scratch));
  return results;
}

uint64_t blocked_matmul_scratch(const Node& node, const std::vector<Tensor>& x, const blocked::MicroKernels& kernels,
                                int threads) {
  const ProductCall call{&node, x};
  return blocked_products_scratch({&call, 1}, kernels, threads);
}

std::optional<std::vector<Tensor>> run_blocked_matmul(const Node& node, const std::vector<Tensor>& x,
                                                      const blocked::MicroKernels& kernels) {
  const ProductCall call{&node, x};
  return run_blocked_products({&call, 1}, kernels);
}

}  // namespace stepc
