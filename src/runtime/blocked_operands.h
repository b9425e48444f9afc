// Tensors as the operands, results and scratch memory of blocked kernels.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/Functions.h>

#include "blocked/number.h"

namespace stepc {

// nullopt: the blocked kernels have no such elements.
inline std::optional<blocked::Number> number_of(at::ScalarType type) {
  if (type == at::kFloat) return blocked::Number::kF32;
  if (type == at::kBFloat16) return blocked::Number::kBf16;
  return std::nullopt;
}

inline at::Tensor workspace(size_t bytes) { return at::empty({static_cast<int64_t>(bytes)}, at::kByte); }

// To write to; nullptr where there is none.
inline void* memory_of(const at::Tensor& tensor) { return tensor.numel() == 0 ? nullptr : tensor.mutable_data_ptr(); }

}  // namespace stepc
