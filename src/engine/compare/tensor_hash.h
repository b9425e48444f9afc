// A tensor's bytes as one number: tensors with equal bits have equal hashes.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace stepc {

// 0 for an undefined tensor. Reads all elements; allocates where the tensor is not contiguous.
uint64_t hash_of(const at::Tensor& tensor);

}  // namespace stepc
