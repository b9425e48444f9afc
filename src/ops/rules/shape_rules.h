// Shape rules that several families share, with their checks. Private to ops/.
#pragma once

#include "ops/op_def.h"

namespace stepc {

// NumPy's broadcast of all shapes; InternalError when they do not fit.
Shape broadcast_shape(const std::vector<TensorType>& types);
// `dim` counted from the front; InternalError when it is none of `rank` dimensions.
size_t checked_dim(int64_t dim, size_t rank);
void check_same_dtype(const OpCall& call, size_t first = 0);
void check_permutation(const Shape& permutation, size_t rank);
Shape reduced_shape(const Shape& shape, const Shape& dims, bool keepdim);

inline TensorType typed(DType dtype, Shape shape) { return {dtype, std::move(shape)}; }
inline double count_of(const TensorType& type) { return static_cast<double>(element_count(type.shape)); }
// f32 for bf16 and f16, else the type itself: what sums and statistics are kept in.
DType wide(DType dtype);

}  // namespace stepc
