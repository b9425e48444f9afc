// TensorLayout: a tensor's type and how it lies in memory: all that a kernel may be chosen by.
#pragma once

#include <cstdint>
#include <optional>

#include "blocked/number.h"
#include "ir/graph.h"

namespace stepc {

struct TensorLayout {
  TensorType type;
  Shape strides;  // in elements
  bool operator==(const TensorLayout&) const = default;
};

bool is_contiguous(const TensorLayout& layout);  // as is_dense()
uint64_t bytes_of(const TensorLayout& layout);   // of its elements

// nullopt: the blocked kernels have no such elements.
std::optional<blocked::Number> number_of(DType dtype);

}  // namespace stepc
