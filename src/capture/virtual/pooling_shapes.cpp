// Pooling, padding and sampling that LibTorch does not describe as structured.
#include <ATen/Operators.h>
#include <ATen/native/Pool.h>

#include "capture/virtual/shape_kernels.h"

namespace stepc {

namespace {

using at::Tensor;

// ---- adaptive average

Tensor adaptive_pool(const Tensor& x, c10::SymIntArrayRef output) {
  std::vector<int64_t> sizes = x.sizes().vec();
  for (size_t i = 0; i < output.size(); ++i) sizes[sizes.size() - output.size() + i] = output[i].expect_int();
  // Only two spatial dimensions keep the channels innermost.
  return dense(sizes, x.scalar_type(), output.size() == 2 ? x.suggest_memory_format() : c10::MemoryFormat::Contiguous);
}
Tensor adaptive_pool2d_backward(const Tensor&, const Tensor& x) { return suggested_like(x, x.scalar_type()); }
Tensor adaptive_pool3d_backward(const Tensor&, const Tensor& x) { return dense(x.sizes(), x.scalar_type()); }

// ---- maximum over three dimensions

int64_t at(at::IntArrayRef values, size_t d) { return values[values.size() == 1 ? 0 : d]; }

std::tuple<Tensor, Tensor> max_pool3d(const Tensor& x, at::IntArrayRef kernel, at::IntArrayRef stride,
                                      at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil) {
  std::vector<int64_t> sizes = x.sizes().vec();
  for (size_t d = 0; d < 3; ++d) {
    int64_t& size = sizes[sizes.size() - 3 + d];
    size = at::native::pooling_output_shape<int64_t>(size, at(kernel, d), at(padding, d),
                                                     at(stride.empty() ? kernel : stride, d), at(dilation, d), ceil);
  }
  const auto format = x.dim() == 5 ? x.suggest_memory_format() : c10::MemoryFormat::Contiguous;
  return {dense(sizes, x.scalar_type(), format), dense(sizes, at::kLong, format)};
}
Tensor max_pool3d_backward(const Tensor&, const Tensor& x, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef,
                           at::IntArrayRef, bool, const Tensor&) {
  const auto format = x.dim() == 5 ? x.suggest_memory_format() : c10::MemoryFormat::Contiguous;
  return dense(x.sizes(), x.scalar_type(), format);
}

// ---- padding by reflection or repetition

Tensor padded(const Tensor& x, c10::SymIntArrayRef padding) {
  std::vector<int64_t> sizes = x.sizes().vec();
  for (size_t i = 0; i < padding.size() / 2; ++i)
    sizes[sizes.size() - 1 - i] += padding[2 * i].expect_int() + padding[2 * i + 1].expect_int();
  return dense(sizes, x.scalar_type(), x.dim() >= 4 ? x.suggest_memory_format() : c10::MemoryFormat::Contiguous);
}
Tensor padded_backward(const Tensor&, const Tensor& x, c10::SymIntArrayRef) {
  return suggested_like(x, x.scalar_type());
}

// ---- sampling at a grid

Tensor grid_sample(const Tensor& x, const Tensor& grid, int64_t, int64_t, bool) {
  std::vector<int64_t> sizes = {x.size(0), x.size(1)};
  for (int64_t d = 1; d + 1 < grid.dim(); ++d) sizes.push_back(grid.size(d));
  return dense(sizes, x.scalar_type());
}
std::tuple<Tensor, Tensor> grid_sample_backward(const Tensor&, const Tensor& x, const Tensor& grid, int64_t, int64_t,
                                                bool, std::array<bool, 2> mask) {
  return {mask[0] ? dense(x.sizes(), x.scalar_type()) : Tensor(), dense(grid.sizes(), grid.scalar_type())};
}

}  // namespace

ShapeKernels pooling_shapes() {
  return {
      shape_kernel<at::_ops::_adaptive_avg_pool2d>(adaptive_pool),
      shape_kernel<at::_ops::_adaptive_avg_pool3d>(adaptive_pool),
      shape_kernel<at::_ops::_adaptive_avg_pool2d_backward>(adaptive_pool2d_backward),
      shape_kernel<at::_ops::_adaptive_avg_pool3d_backward>(adaptive_pool3d_backward),
      shape_kernel<at::_ops::max_pool3d_with_indices>(max_pool3d),
      shape_kernel<at::_ops::max_pool3d_with_indices_backward>(max_pool3d_backward),
      shape_kernel<at::_ops::reflection_pad2d>(padded),
      shape_kernel<at::_ops::reflection_pad2d_backward>(padded_backward),
      shape_kernel<at::_ops::replication_pad2d>(padded),
      shape_kernel<at::_ops::replication_pad2d_backward>(padded_backward),
      shape_kernel<at::_ops::reflection_pad3d>(padded),
      shape_kernel<at::_ops::replication_pad3d>(padded),
      shape_kernel<at::_ops::grid_sampler_2d>(grid_sample),
      shape_kernel<at::_ops::grid_sampler_3d>(grid_sample),
      shape_kernel<at::_ops::grid_sampler_2d_backward>(grid_sample_backward),
      shape_kernel<at::_ops::grid_sampler_3d_backward>(grid_sample_backward),
  };
}

}  // namespace stepc
