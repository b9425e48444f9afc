#include "runtime/blocked_matmul.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "blocked/matmul.h"
#include "ir/alignment.h"

namespace stepc {

namespace {
using at::Tensor;

struct BoundMatmul {
  blocked::Number type = blocked::Number::kF32;
  int64_t m = 0, n = 0, k = 0;
  blocked::Operand a, b;

  [[nodiscard]] blocked::Product product(void* result) const { return {n, b, false, {result, type, n}, {}}; }
  [[nodiscard]] blocked::Matmul call(const blocked::Product& product) const {
    return {type, 1, m, k, a, {&product, 1}, {}};
  }
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
  const at::ScalarType type = x[0].scalar_type();
  if (!(type == at::kBFloat16 && rule.bf16) && !(type == at::kFloat && rule.f32)) return std::nullopt;
  if (x[0].dim() != 2 || x[0].numel() == 0 || x[1].numel() == 0) return std::nullopt;
  const bool turn_a = node.attrs.get<bool>("transpose_a");
  const bool turn_b = node.attrs.get<bool>("transpose_b");
  const auto a = operand(x[0], turn_a);
  const auto b = operand(x[1], turn_b);
  if (!a.has_value() || !b.has_value()) return std::nullopt;
  if (a->column_stride != 1 && static_cast<int64_t>(x[0].nbytes()) > rule.most_turned_bytes) return std::nullopt;
  const blocked::Number number = type == at::kFloat ? blocked::Number::kF32 : blocked::Number::kBf16;
  return BoundMatmul{number, x[0].size(turn_a ? 1 : 0), x[1].size(turn_b ? 0 : 1), x[0].size(turn_a ? 0 : 1), *a, *b};
}
}  // namespace

MatmulRule matmul_rule(const blocked::MicroKernels& kernels) {
  return {kernels.bf16 && kernels.avx512, kernels.f32 && kernels.avx512 && !kernels.intel};
}

uint64_t blocked_matmul_scratch(const Node& node, const std::vector<Tensor>& x, const blocked::MicroKernels& kernels,
                                int threads) {
  const std::optional<BoundMatmul> bound = bind(node, x, kernels);
  if (!bound.has_value()) return 0;
  const blocked::Product product = bound->product(nullptr);
  return aligned(blocked::workspace_bytes(bound->call(product), threads));
}

std::optional<std::vector<Tensor>> run_blocked_matmul(const Node& node, const std::vector<Tensor>& x,
                                                      const blocked::MicroKernels& kernels) {
  std::optional<BoundMatmul> bound = bind(node, x, kernels);
  if (!bound.has_value()) return std::nullopt;
  const Tensor result = at::empty({bound->m, bound->n}, x[0].options());
  bound->a.data = x[0].const_data_ptr();
  bound->b.data = x[1].const_data_ptr();
  const blocked::Product product = bound->product(result.mutable_data_ptr());
  const blocked::Matmul call = bound->call(product);
  const int threads = at::get_num_threads();
  const Tensor scratch = at::empty({static_cast<int64_t>(blocked::workspace_bytes(call, threads))}, at::kByte);
  blocked::matmul(call, kernels, threads, scratch.numel() == 0 ? nullptr : scratch.mutable_data_ptr());
  return {{result}};
}

}  // namespace stepc
