#include "kernels/tensor_layout.h"

namespace stepc {

bool is_contiguous(const TensorLayout& layout) { return is_dense(layout.type.shape, layout.strides); }

uint64_t bytes_of(const TensorLayout& layout) { return static_cast<uint64_t>(bytes_of(layout.type)); }

std::optional<blocked::Number> number_of(DType dtype) {
  if (dtype == DType::kF32) return blocked::Number::kF32;
  if (dtype == DType::kBF16) return blocked::Number::kBf16;
  return std::nullopt;
}

}  // namespace stepc
