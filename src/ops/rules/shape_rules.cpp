#include "ops/rules/shape_rules.h"

#include <algorithm>

#include "base/check.h"

namespace stepc {

Shape broadcast_shape(const std::vector<TensorType>& types) {
  Shape out;
  for (const TensorType& type : types) {
    if (type.shape.size() > out.size()) out.insert(out.begin(), type.shape.size() - out.size(), 1);
    const size_t missing = out.size() - type.shape.size();
    for (size_t d = 0; d < type.shape.size(); ++d) {
      int64_t& size = out[d + missing];
      if (type.shape[d] == 1 || type.shape[d] == size) continue;
      INTERNAL_CHECK_EQ(size, 1, "a [{}] does not broadcast", fmt::join(type.shape, ", "));
      size = type.shape[d];
    }
  }
  return out;
}

size_t checked_dim(int64_t dim, size_t rank) {
  INTERNAL_CHECK(0 <= dim && static_cast<size_t>(dim) < rank, "dimension {} of {}", dim, rank);
  return static_cast<size_t>(dim);
}

void check_same_dtype(const OpCall& call, size_t first) {
  for (size_t i = first + 1; i < call.inputs.size(); ++i)
    INTERNAL_CHECK_EQ(name_of(call.in(i).dtype), name_of(call.in(first).dtype), "operand {}", i);
}

void check_permutation(const Shape& permutation, size_t rank) {
  Shape sorted = permutation;
  std::ranges::sort(sorted);
  INTERNAL_CHECK_EQ(sorted.size(), rank, "a permutation of dimensions");
  for (size_t d = 0; d < rank; ++d)
    INTERNAL_CHECK_EQ(sorted[d], static_cast<int64_t>(d), "[{}] is no permutation", fmt::join(permutation, ", "));
}

Shape reduced_shape(const Shape& shape, const Shape& dims, bool keepdim) {
  std::vector<bool> drop(shape.size(), false);
  for (int64_t dim : dims) {
    const size_t d = checked_dim(dim, shape.size());
    INTERNAL_CHECK(!drop[d], "dimension {} is reduced twice", dim);
    drop[d] = true;
  }
  Shape out;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (!drop[d])
      out.push_back(shape[d]);
    else if (keepdim)
      out.push_back(1);
  }
  return out;
}

DType wide(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16 ? DType::kF32 : dtype; }

}  // namespace stepc
