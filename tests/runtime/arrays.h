// Arrays of the interpreter as tensors, and back.
#pragma once

#include <cstring>
#include <vector>

#include <ATen/Functions.h>

#include "aten/constants.h"
#include "interp/array.h"

namespace stepc::test {

inline at::Tensor tensor_of(const Array& array) {
  const std::vector<uint8_t> bytes = to_bytes(array);
  at::Tensor tensor = at::empty(array.type.shape, scalar_type_of(array.type.dtype));
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}
inline Array array_of(const at::Tensor& tensor, const TensorType& type) {
  const at::Tensor dense = tensor.contiguous();
  const auto* bytes = static_cast<const uint8_t*>(dense.const_data_ptr());
  return from_bytes(type, std::vector<uint8_t>(bytes, bytes + dense.nbytes()));
}

}  // namespace stepc::test
