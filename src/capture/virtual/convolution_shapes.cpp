// Convolution: sizes by arithmetic; strides by the memory format of the backend that LibTorch would pick, which it
// tells from geometry alone.
#include <ATen/Operators.h>
#include <ATen/native/ConvUtils.h>

#include "aten/virtual_memory.h"
#include "capture/virtual/shape_kernels.h"

namespace stepc {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// The arguments of both directions. One spatial dimension is computed as two, the first of size 1.
struct Convolution {
  c10::SymIntArrayRef stride, padding, dilation;
  bool transposed;
  c10::SymIntArrayRef output_padding;
  c10::SymInt groups;
};

std::vector<c10::SymInt> as_2d(c10::SymIntArrayRef values, int64_t first) {
  std::vector<c10::SymInt> both = values.vec();
  if (both.size() == 1) both.insert(both.begin(), c10::SymInt(first));
  return both;
}

// The backend is asked about CPU tensors; these have no memory either.
Tensor on_cpu(const Tensor& x) {
  const Tensor wide = x.dim() == 3 ? x.unsqueeze(2) : x;
  return virtual_tensor(wide.sizes(), wide.strides(), wide.scalar_type());
}

struct Format {
  c10::MemoryFormat memory;
  bool slow;  // kernels of LibTorch's own, not oneDNN's
};

Format backend_format(const Tensor& x, const Tensor& weight, const Convolution& c) {
  const Tensor input = on_cpu(x.dim() == 3 ? dense(x.sizes(), x.scalar_type()) : x);  // made contiguous, then widened
  const Tensor kernel = on_cpu(weight);
  const auto backend = at::native::select_conv_backend(input, kernel, std::nullopt, as_2d(c.stride, 1),
                                                       as_2d(c.padding, 0), as_2d(c.dilation, 1), c.transposed,
                                                       as_2d(c.output_padding, 0), c.groups, std::nullopt);
  using at::native::ConvBackend;
  return {at::native::_determine_backend_memory_format(input, kernel, backend),
          backend == ConvBackend::Slow2d || backend == ConvBackend::SlowTranspose2d};
}

// A result of `sizes` in the backend's format, computed wide and narrowed again when there is one spatial dimension.
Tensor result(std::vector<int64_t> sizes, c10::ScalarType dtype, c10::MemoryFormat format) {
  if (sizes.size() != 3) return dense(sizes, dtype, format);
  sizes.insert(sizes.begin() + 2, 1);
  return dense(sizes, dtype, format).squeeze(2);
}

// The slow kernels run once for each group of channels, and what is concatenated of that lies as its parts: those of
// one channel and one pixel are contiguous whatever their format.
c10::MemoryFormat format_of_parts(const std::vector<int64_t>& sizes, const Format& format, int64_t groups) {
  if (!format.slow || groups == 1 || sizes.size() != 4) return format.memory;
  return dense({sizes[0], sizes[1] / groups, sizes[2], sizes[3]}, at::kFloat, format.memory).suggest_memory_format();
}

// A gradient is written in the backend's format. The slow kernels leave a kernel of one pixel in the weight's own,
// where that is contiguous both ways, and where groups have one channel each, contiguous.
Tensor weight_gradient(const Tensor& weight, const Format& format, int64_t groups) {
  const bool one_pixel = weight.dim() == 4 && weight.size(2) == 1 && weight.size(3) == 1;
  if (one_pixel && format.slow && weight.is_contiguous(format.memory)) return dense_like(weight);
  const bool has_one_channel = format.slow && groups > 1 && weight.size(1) == 1;
  return result(weight.sizes().vec(), weight.scalar_type(),
                has_one_channel ? c10::MemoryFormat::Contiguous : format.memory);
}

Tensor convolution(const Tensor& x, const Tensor& weight, const OptionalTensor&, c10::SymIntArrayRef stride,
                   c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
                   c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  const Convolution c{stride, padding, dilation, transposed, output_padding, groups};
  std::vector<int64_t> sizes = {x.size(0), transposed ? weight.size(1) * groups.expect_int() : weight.size(0)};
  for (int64_t d = 2; d < x.dim(); ++d) {
    const auto at = [&](c10::SymIntArrayRef values) {
      return values[values.size() == 1 ? 0 : static_cast<size_t>(d - 2)].expect_int();
    };
    const int64_t reach = at(dilation) * (weight.size(d) - 1);
    sizes.push_back(transposed ? (x.size(d) - 1) * at(stride) - 2 * at(padding) + reach + at(output_padding) + 1
                               : (x.size(d) + 2 * at(padding) - reach - 1) / at(stride) + 1);
  }
  return result(sizes, x.scalar_type(), format_of_parts(sizes, backend_format(x, weight, c), groups.expect_int()));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                                        at::OptionalSymIntArrayRef, c10::SymIntArrayRef stride,
                                                        c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                                                        bool transposed, c10::SymIntArrayRef output_padding,
                                                        c10::SymInt groups, std::array<bool, 3> mask) {
  const Convolution c{stride, padding, dilation, transposed, output_padding, groups};
  const auto format = backend_format(x, weight, c);
  const std::vector<int64_t> sizes = x.sizes().vec();
  return {mask[0] ? result(sizes, x.scalar_type(), format_of_parts(sizes, format, groups.expect_int())) : Tensor(),
          mask[1] ? weight_gradient(weight, format, groups.expect_int()) : Tensor(),
          mask[2] ? dense({grad.size(1)}, weight.scalar_type()) : Tensor()};
}

}  // namespace

ShapeKernels convolution_shapes() {
  return {
      shape_kernel<at::_ops::convolution>(convolution),
      shape_kernel<at::_ops::convolution_backward>(convolution_backward),
  };
}

}  // namespace stepc
