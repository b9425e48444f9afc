// Matmuls, indexing, and tensors made from nothing, on ATen.
#include <algorithm>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/stack.h>
#include <ATen/ops/from_blob.h>

#include "aten/constants.h"
#include "aten/operators.h"
#include "ops/philox.h"
#include "runtime/aten_ops/aten_ops.h"

namespace stepc::detail {

namespace {
using Tensors = std::vector<at::Tensor>;
using Types = std::vector<TensorType>;
using at::Tensor;

constexpr int64_t kBlock = 384;  // rows and columns

// Whether the CPU library has no kernel for the operand, as the library itself reports.
bool has_no_kernel_for(const Tensor& operand) {
  if (!operand.is_cpu()) return false;
  const at::ScalarType type = operand.scalar_type();
  const auto has_one = [](const char* op) {
    torch::jit::Stack stack;
    find_operator(op).callBoxed(&stack);
    return stack.front().toBool();
  };
  static const bool kHasBf16 = has_one("mkldnn::_is_mkldnn_bf16_supported");
  static const bool kHasF16 = has_one("mkldnn::_is_mkldnn_fp16_supported");
  return (type == at::kBFloat16 && !kHasBf16) || (type == at::kHalf && !kHasF16);
}

// A block in f32, in memory that the thread keeps: three blocks of 576 KiB each.
Tensor widened(std::vector<float>& memory, int64_t rows, int64_t columns) {
  memory.resize(kBlock * kBlock);
  return at::from_blob(memory.data(), {rows, columns}, at::kFloat);
}

// Operands of more than two dimensions become several products of matrices.
Tensor widened_matmul(const Tensor& left, const Tensor& right) {
  std::vector<int64_t> sizes = left.sizes().vec();
  sizes.back() = right.size(-1);
  if (left.dim() >= 2 && right.dim() == 2) return mm_in_blocks(left.flatten(0, -2), right).view(sizes);
  const size_t batch = sizes.size() - 2;
  if (left.dim() < 3 || left.dim() != right.dim() || left.sizes().slice(0, batch) != right.sizes().slice(0, batch))
    return at::matmul(left, right);
  const Tensor lefts = left.flatten(0, -3), rights = right.flatten(0, -3);
  Tensor out = at::empty({lefts.size(0), sizes[batch], sizes.back()}, left.options());
  for (int64_t one = 0; one < out.size(0); ++one) mm_out_in_blocks(out[one], lefts[one], rights[one]);
  return out.view(sizes);
}

Tensors matmul(const Tensors& x, const Attrs& attrs, const Types&) {
  const bool transposed = attrs.get<bool>("transpose_a");
  const Tensor left = transposed ? x[0].mT() : x[0];
  const Tensor right = attrs.get<bool>("transpose_b") ? x[1].mT() : x[1];
  return {has_no_kernel_for(left) ? widened_matmul(left, right) : at::matmul(left, right)};
}

std::pair<Tensor, Tensor> operands_of_sum(const Tensors& x, const Attrs& attrs) {
  return {attrs.get<bool>("transpose_a") ? x[1].mT() : x[1], attrs.get<bool>("transpose_b") ? x[2].mT() : x[2]};
}
void matmul_add(const Tensor& target, const Tensors& x, const Attrs& attrs) {
  const auto [left, right] = operands_of_sum(x, attrs);
  Tensor to = target;
  if (has_no_kernel_for(left))
    to.add_(mm_in_blocks(left, right));
  else
    at::addmm_out(to, to, left, right);
}
Tensors matmul_bias(const Tensors& x, const Attrs& attrs, const Types&) {
  const auto [left, right] = operands_of_sum(x, attrs);
  const bool relu = attrs.get<bool>("relu");
  if (has_no_kernel_for(left)) {
    Tensor sum = mm_in_blocks(left, right).add_(x[0]);
    return {relu ? sum.relu_() : sum};
  }
  return {relu ? at::_addmm_activation(x[0], left, right) : at::addmm(x[0], left, right)};
}

// A GPU's kernel needs both operands with the summed dimension innermost; the CPU has no kernel for all of these
// layouts.
Tensors scaled_matmul(const Tensors& x, const Attrs& attrs, const Types& types) {
  const Tensor left = attrs.get<bool>("transpose_a") ? x[0].mT() : x[0];
  const Tensor right = attrs.get<bool>("transpose_b") ? x[1].mT() : x[1];
  if (left.is_cuda())
    return {at::_scaled_mm(left.contiguous(), right.mT().contiguous().mT(), x[2], x[3], {}, {},
                           scalar_type_of(types[0].dtype))};
  return {at::matmul(left.to(at::kFloat), right.to(at::kFloat)).mul_(x[2]).mul_(x[3])};
}

// ---- index

int64_t dim_of(const Attrs& attrs) { return attrs.get<int64_t>("dim"); }
Tensor index_of(const Tensor& index) { return index.to(at::kLong); }

Tensors gather(const Tensors& x, const Attrs& attrs, const Types&) {
  return {at::gather(x[0], dim_of(attrs), index_of(x[1]))};
}
void scatter(const Tensor& target, const Tensors& x, const Attrs& attrs) {
  target.scatter_(dim_of(attrs), index_of(x[1]), x[2]);
}
void scatter_add(const Tensor& target, const Tensors& x, const Attrs& attrs) {
  target.scatter_add_(dim_of(attrs), index_of(x[1]), x[2]);
}
Tensors take(const Tensors& x, const Attrs& attrs, const Types& types) {
  return {at::index_select(x[0], dim_of(attrs), index_of(x[1]).reshape(-1)).reshape(types[0].shape)};
}
// The values of put and put_add, with one dimension for the index.
Tensor slices(const Tensors& x, int64_t dim) {
  Shape shape = x[0].sizes().vec();
  shape[static_cast<size_t>(dim)] = x[1].numel();
  return x[2].reshape(shape);
}
void put(const Tensor& target, const Tensors& x, const Attrs& attrs) {
  const int64_t dim = dim_of(attrs);
  target.index_copy_(dim, index_of(x[1]).reshape(-1), slices(x, dim));
}
void put_add(const Tensor& target, const Tensors& x, const Attrs& attrs) {
  const int64_t dim = dim_of(attrs);
  target.index_add_(dim, index_of(x[1]).reshape(-1), slices(x, dim));
}
Tensors sort(const Tensors& x, const Attrs& attrs, const Types&) {
  auto [values, places] = at::sort(x[0], /*stable=*/true, dim_of(attrs), attrs.get<bool>("descending"));
  return {values, places};
}

// ---- made from nothing

using Device = c10::Device;

at::Scalar scalar_of(const Attrs& attrs, std::string_view name) {
  if (const auto* integer = std::get_if<int64_t>(attrs.find(name))) return *integer;
  return attrs.number(name);
}

Tensor full(const Tensors&, const Attrs& attrs, const TensorType& type, const Device& device) {
  const auto options = at::TensorOptions(scalar_type_of(type.dtype)).device(device);
  return at::full(type.shape, scalar_of(attrs, "value"), options);
}
Tensor constant(const Tensors&, const Attrs& attrs, const TensorType& type, const Device& device) {
  const bool real = is_floating(type.dtype);
  const Tensor listed = real ? at::tensor(attrs.get<std::vector<double>>("reals"), at::kDouble)
                             : at::tensor(attrs.get<Shape>("integers"), at::kLong);
  return listed.reshape(type.shape).to(device, scalar_type_of(type.dtype));
}
Tensor iota(const Tensors&, const Attrs& attrs, const TensorType& type, const Device& device) {
  const auto dim = static_cast<size_t>(dim_of(attrs));
  Shape along(type.shape.size(), 1);
  along[dim] = type.shape[dim];
  const auto options = at::TensorOptions(is_floating(type.dtype) ? at::kDouble : at::kLong).device(device);
  const Tensor steps = at::arange(type.shape[dim], options) * scalar_of(attrs, "step") + scalar_of(attrs, "start");
  return steps.to(scalar_type_of(type.dtype)).reshape(along).expand(type.shape);
}

template <double (philox::Draw::*kElement)(int64_t) const>
Tensor random(const Tensors& x, const Attrs& attrs, const TensorType& type, const Device& device) {
  const Tensor key = x[0].cpu();
  const philox::Draw draw{key[0].item<int64_t>(), key[1].item<int64_t>(), attrs.get<int64_t>("stream")};
  const Tensor out = at::empty(type.shape, at::kDouble);
  auto* elements = out.mutable_data_ptr<double>();
  const Tensor places = x.size() > 1 ? x[1].cpu().contiguous() : Tensor();
  const auto* place_of = places.defined() ? places.const_data_ptr<int64_t>() : nullptr;
  at::parallel_for(0, out.numel(), 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) elements[i] = (draw.*kElement)(place_of != nullptr ? place_of[i] : i);
  });
  return out.to(device);
}
}  // namespace

const OverwritingOps& index_overwriting_ops() {
  static const OverwritingOps kOps = {
      {"scatter", scatter}, {"scatter_add", scatter_add}, {"put", put},
      {"put_add", put_add}, {"matmul_add", matmul_add},
  };
  return kOps;
}

void mm_out_in_blocks(const Tensor& out, const Tensor& left, const Tensor& right) {
  if (!has_no_kernel_for(left)) {
    Tensor to = out;
    at::mm_out(to, left, right);
    return;
  }
  thread_local std::vector<float> left_block, right_block, sums_block;
  const int64_t rows = left.size(0), columns = right.size(1), inner = left.size(1);
  if (inner == 0) out.zero_();
  for (int64_t c = 0; c < columns && inner > 0; c += kBlock) {
    const int64_t wide = std::min(kBlock, columns - c);
    for (int64_t r = 0; r < rows; r += kBlock) {
      const int64_t high = std::min(kBlock, rows - r);
      Tensor sums = widened(sums_block, high, wide).zero_();
      for (int64_t k = 0; k < inner; k += kBlock) {
        const int64_t deep = std::min(kBlock, inner - k);
        const Tensor a = widened(left_block, high, deep).copy_(left.narrow(0, r, high).narrow(1, k, deep));
        const Tensor b = widened(right_block, deep, wide).copy_(right.narrow(0, k, deep).narrow(1, c, wide));
        sums.addmm_(a, b);
      }
      out.narrow(0, r, high).narrow(1, c, wide).copy_(sums);
    }
  }
}
Tensor mm_in_blocks(const Tensor& left, const Tensor& right) {
  Tensor out = at::empty({left.size(0), right.size(1)}, left.options());
  mm_out_in_blocks(out, left, right);
  return out;
}

const AtenOps& matmul_aten_ops() {
  static const AtenOps kOps = {
      {"matmul", matmul},
      {"scaled_matmul", scaled_matmul},
      {"matmul_bias", matmul_bias},
      {"gather", gather},
      {"take", take},
      {"sort", sort},
  };
  return kOps;
}

const MakingOps& making_aten_ops() {
  static const MakingOps kOps = {
      {"full", full},
      {"constant", constant},
      {"iota", iota},
      {"random_uniform", random<&philox::Draw::uniform>},
      {"random_normal", random<&philox::Draw::normal>},
  };
  return kOps;
}

}  // namespace stepc::detail
