// Gathering, scattering, and reductions that LibTorch does not describe as structured.
#include <algorithm>

#include <ATen/ExpandUtils.h>
#include <ATen/Operators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/_ctc_loss_meta_dispatch.h>
#include <ATen/ops/mean_meta_dispatch.h>
#include <ATen/ops/sum_meta_dispatch.h>

#include "capture/virtual/shape_kernels.h"

namespace stepc {

namespace {

using at::Scalar;
using at::ScalarType;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using OptionalType = std::optional<ScalarType>;

// ---- embeddings

Tensor embedding(const Tensor& weight, const Tensor& indices, c10::SymInt, bool, bool) {
  std::vector<int64_t> sizes = indices.sizes().vec();
  sizes.insert(sizes.end(), weight.sizes().begin() + 1, weight.sizes().end());
  return dense(sizes, weight.scalar_type());
}

Tensor embedding_dense_backward(const Tensor& grad, const Tensor&, c10::SymInt rows, c10::SymInt, bool) {
  return dense({rows.expect_int(), grad.size(-1)}, grad.scalar_type());
}

// ---- indices

Tensor index_put(const Tensor& x, const c10::List<OptionalTensor>&, const Tensor&, bool) { return dense_like(x); }
Tensor masked_scatter(const Tensor& x, const Tensor& mask, const Tensor&) {
  return dense(at::infer_size(x.sizes(), mask.sizes()), x.scalar_type());
}
Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index) {
  std::vector<int64_t> sizes = x.sizes().vec();
  if (!sizes.empty()) sizes[static_cast<size_t>(at::maybe_wrap_dim(dim, x.dim()))] = index.numel();
  return dense(sizes, x.scalar_type());
}
Tensor take(const Tensor& x, const Tensor& index) { return dense(index.sizes(), x.scalar_type()); }
Tensor index_fill_number(const Tensor& x, int64_t, const Tensor&, const Scalar&) { return dense_like(x); }

// ---- classification losses (N, C, ...)

std::tuple<Tensor, Tensor> nll_loss2d(const Tensor& x, const Tensor& target, const OptionalTensor&, int64_t reduction,
                                      c10::SymInt) {
  return {reduction == at::Reduction::None ? dense(target.sizes(), x.scalar_type()) : dense({}, x.scalar_type()),
          dense({}, x.scalar_type())};
}
Tensor nll_loss2d_backward(const Tensor&, const Tensor& x, const Tensor&, const OptionalTensor&, int64_t, c10::SymInt,
                           const Tensor&) {
  return dense(x.sizes(), x.scalar_type());
}

// ---- connectionist temporal classification

Tensor ctc_loss_backward(const Tensor&, const Tensor& scores, const Tensor&, at::IntArrayRef, at::IntArrayRef,
                         const Tensor&, const Tensor&, int64_t, bool) {
  return dense(scores.sizes(), scores.scalar_type());
}

// ---- reductions

Tensor sum_all(const Tensor& x, OptionalType dtype) { return at::meta::sum(x, at::IntArrayRef(), false, dtype); }
Tensor mean_all(const Tensor& x, OptionalType dtype) { return dense({}, dtype.value_or(x.scalar_type())); }
Tensor extreme_all(const Tensor& x) { return dense({}, x.scalar_type()); }
Tensor product_all(const Tensor& x, OptionalType dtype) {
  const bool counts = c10::isIntegralType(x.scalar_type(), /*includeBool=*/true);
  return dense({}, dtype.value_or(counts ? at::kLong : x.scalar_type()));
}

Tensor over_dims(const Tensor& x, at::OptionalIntArrayRef dims, bool keep) {
  return at::meta::sum(x, dims, keep, x.scalar_type());
}
Tensor variance(const Tensor& x, at::OptionalIntArrayRef dims, const std::optional<Scalar>&, bool keep) {
  return over_dims(x, dims, keep);
}
std::tuple<Tensor, Tensor> variance_and_mean(const Tensor& x, at::OptionalIntArrayRef dims,
                                             const std::optional<Scalar>&, bool keep) {
  return {over_dims(x, dims, keep), over_dims(x, dims, keep)};
}
Tensor logsumexp(const Tensor& x, at::IntArrayRef dims, bool keep) { return over_dims(x, dims, keep); }
Tensor safe_softmax(const Tensor& x, int64_t, OptionalType dtype) {
  return dense(x.sizes(), dtype.value_or(x.scalar_type()));
}

}  // namespace

ShapeKernels index_shapes() {
  return {
      shape_kernel<at::_ops::embedding>(embedding),
      shape_kernel<at::_ops::embedding_dense_backward>(embedding_dense_backward),
      shape_kernel<at::_ops::index_put>(index_put),
      shape_kernel<at::_ops::index_select>(index_select),
      shape_kernel<at::_ops::index_fill_int_Scalar>(index_fill_number),
      shape_kernel<at::_ops::masked_scatter>(masked_scatter),
      shape_kernel<at::_ops::take>(take),
      shape_kernel<at::_ops::nll_loss2d_forward>(nll_loss2d),
      shape_kernel<at::_ops::nll_loss2d_backward>(nll_loss2d_backward),
      shape_kernel<at::_ops::_ctc_loss>(at::meta::_ctc_loss),
      shape_kernel<at::_ops::_ctc_loss_backward>(ctc_loss_backward),
      shape_kernel<at::_ops::sum>(sum_all),
      shape_kernel<at::_ops::mean>(mean_all),
      shape_kernel<at::_ops::prod>(product_all),
      shape_kernel<at::_ops::max>(extreme_all),
      shape_kernel<at::_ops::min>(extreme_all),
      shape_kernel<at::_ops::var_correction>(variance),
      shape_kernel<at::_ops::std_correction>(variance),
      shape_kernel<at::_ops::var_mean_correction>(variance_and_mean),
      shape_kernel<at::_ops::logsumexp>(logsumexp),
      shape_kernel<at::_ops::_safe_softmax>(safe_softmax),
  };
}

}  // namespace stepc
