#include "runtime/blocked_matmul.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "aten/constants.h"
#include "ir/alignment.h"
#include "runtime/blocked_operands.h"

namespace stepc {

namespace {
using at::Tensor;

// As it lies or turned; every row or every column is side by side.
std::optional<blocked::Operand> operand(const Tensor& x, bool transposed) {
  if (x.stride(0) != 1 && x.stride(1) != 1) return std::nullopt;
  blocked::Operand read{nullptr, x.stride(0), x.stride(1)};
  if (transposed) std::swap(read.row_stride, read.column_stride);
  return read;
}

blocked::Matmul matmul_of(const BoundMatmul& bound, const blocked::Product& product) {
  return {bound.type, 1, bound.m, bound.k, bound.a, {&product, 1}};
}
}  // namespace

ProductRule product_rule(const blocked::MicroKernels& kernels) {
  return {kernels.bf16 && kernels.avx512, kernels.f32 && kernels.avx512 && !kernels.intel};
}

std::optional<BoundMatmul> bind_matmul(const Node& node, const std::vector<Tensor>& x,
                                       const blocked::MicroKernels& kernels) {
  const ProductRule rule = product_rule(kernels);
  const std::optional<blocked::Number> number = number_of(x[0].scalar_type());
  if (!number || !rule.takes(dtype_of(x[0].scalar_type()))) return std::nullopt;
  if (x[0].dim() != 2 || x[0].numel() == 0 || x[1].numel() == 0) return std::nullopt;
  const bool turn_a = node.attrs.get<bool>("transpose_a");
  const bool turn_b = node.attrs.get<bool>("transpose_b");
  const auto a = operand(x[0], turn_a);
  const auto b = operand(x[1], turn_b);
  if (!a.has_value() || !b.has_value()) return std::nullopt;
  if (a->column_stride != 1 && static_cast<int64_t>(x[0].nbytes()) > rule.most_turned_bytes) return std::nullopt;
  return BoundMatmul{*number, x[0].size(turn_a ? 1 : 0), x[1].size(turn_b ? 0 : 1), x[0].size(turn_a ? 0 : 1), *a, *b};
}

uint64_t blocked_matmul_scratch(const Node& node, const std::vector<Tensor>& x, const blocked::MicroKernels& kernels,
                                int threads) {
  const std::optional<BoundMatmul> bound = bind_matmul(node, x, kernels);
  if (!bound.has_value()) return 0;
  const blocked::Product product{bound->n, bound->b, false, {nullptr, bound->type, bound->n}, {}};
  return aligned(blocked::workspace_bytes(matmul_of(*bound, product), threads));
}

std::optional<std::vector<Tensor>> run_blocked_matmul(const Node& node, const std::vector<Tensor>& x,
                                                      const blocked::MicroKernels& kernels) {
  std::optional<BoundMatmul> bound = bind_matmul(node, x, kernels);
  if (!bound.has_value()) return std::nullopt;
  bound->a.data = x[0].const_data_ptr();
  bound->b.data = x[1].const_data_ptr();
  Tensor result = at::empty({bound->m, bound->n}, x[0].options());
  const blocked::Product product{bound->n, bound->b, false, {result.mutable_data_ptr(), bound->type, bound->n}, {}};
  const blocked::Matmul call = matmul_of(*bound, product);
  const int threads = at::get_num_threads();
  const Tensor scratch = workspace(blocked::workspace_bytes(call, threads));
  blocked::matmul(call, kernels, threads, memory_of(scratch));
  return std::vector<Tensor>{std::move(result)};
}

}  // namespace stepc
