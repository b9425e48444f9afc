// ATen map: reductions and matmuls.
#include <cmath>
#include <numeric>

#include "ops/aten_map/aten_map.h"
#include "ops/op_def.h"

namespace stepc {

namespace {

using Ids = std::vector<TensorId>;
using M = AtenMapper;

// The dimensions of an optional list; all of them when it is none or empty.
Shape dims_of(M& m, size_t argument, TensorId x) {
  const size_t rank = m.b.shape(x).size();
  if (rank == 0) return {};
  Shape dims;
  if (m.has(argument))
    for (int64_t d : m.ints(argument)) dims.push_back(M::dim(d, rank));
  if (dims.empty()) {
    dims.resize(rank);
    std::iota(dims.begin(), dims.end(), 0);
  }
  return dims;
}
TensorId reduced(M& m, std::string_view op, TensorId x, const Shape& dims, bool keepdim) {
  return m.b.add(op, {x}, {{"dims", dims}, {"keepdim", keepdim}});
}

Ids sum_all(M& m) {
  const TensorId x = m.tensor(0, m.result(0).dtype);
  return {reduced(m, "sum", x, dims_of(m, SIZE_MAX, x), false)};
}
Ids sum_dims(M& m) {
  const TensorId x = m.tensor(0, m.result(0).dtype);
  return {reduced(m, "sum", x, dims_of(m, 1, x), m.flag(2, false))};
}
Ids mean_all(M& m) {
  const TensorId x = m.tensor(0, m.result(0).dtype);
  return {reduced(m, "mean", x, dims_of(m, SIZE_MAX, x), false)};
}
Ids mean_dims(M& m) {
  const TensorId x = m.tensor(0, m.result(0).dtype);
  return {reduced(m, "mean", x, dims_of(m, 1, x), m.flag(2, false))};
}
template <bool kLargest>
Ids extreme_dims(M& m) {  // amax, amin
  const TensorId x = m.tensor(0);
  return {reduced(m, kLargest ? "max" : "min", x, dims_of(m, 1, x), m.flag(2, false))};
}
template <bool kLargest>
Ids extreme_all(M& m) {
  const TensorId x = m.tensor(0);
  return {reduced(m, kLargest ? "max" : "min", x, dims_of(m, SIZE_MAX, x), false)};
}
template <bool kLargest>
Ids extreme_with_place(M& m) {  // max.dim, min.dim
  const TensorId x = m.tensor(0);
  const size_t rank = m.b.shape(x).size();
  const int64_t dim = M::dim(m.integer(1), rank);
  const bool keepdim = m.flag(2, false);
  return {reduced(m, kLargest ? "max" : "min", x, {dim}, keepdim),
          m.b.add(kLargest ? "argmax" : "argmin", {x}, {{"dim", dim}, {"keepdim", keepdim}})};
}
template <bool kLargest>
Ids arg_extreme(M& m) {
  TensorId x = m.tensor(0);
  int64_t dim = 0;
  if (m.has(1) && !m.b.shape(x).empty())
    dim = M::dim(m.integer(1), m.b.shape(x).size());
  else
    x = m.b.reshape(x, {element_count(m.b.shape(x))});
  const TensorId out =
      m.b.add(kLargest ? "argmax" : "argmin", {x}, {{"dim", dim}, {"keepdim", m.has(1) && m.flag(2, false)}});
  return {m.b.reshape(out, m.result(0).shape)};
}
template <bool kAny>
Ids truth_dims(M& m, const Shape& dims, bool keepdim) {
  return {m.as_result(reduced(m, kAny ? "any" : "all", m.tensor(0, DType::kBool), dims, keepdim))};
}
template <bool kAny>
Ids truth_all(M& m) {
  return truth_dims<kAny>(m, dims_of(m, SIZE_MAX, m.tensor(0)), false);
}
template <bool kAny>
Ids truth_dim(M& m) {
  return truth_dims<kAny>(m, dims_of(m, 1, m.tensor(0)), m.flag(2, false));
}
Ids prod_all(M& m) {
  const TensorId x = m.tensor(0, m.result(0).dtype);
  return {reduced(m, "prod", x, dims_of(m, SIZE_MAX, x), false)};
}
Ids cumsum(M& m) {
  const TensorId x = m.tensor(0, m.result(0).dtype);
  if (m.b.shape(x).empty()) return {x};
  return {m.b.add("cumsum", {x}, {{"dim", M::dim(m.integer(1), m.b.shape(x).size())}})};
}

// The p-norm over dims, in f32 for small types.
TensorId norm_of(M& m, TensorId x, double p, const Shape& dims, bool keepdim) {
  const DType dtype = m.b.dtype(x);
  const bool is_small = dtype == DType::kBF16 || dtype == DType::kF16;
  x = m.b.cast(x, is_small ? DType::kF32 : dtype);
  const TensorId size = m.b.add("abs", {x});
  if (std::isinf(p)) return reduced(m, p > 0 ? "max" : "min", size, dims, keepdim);
  if (p == 2) return m.b.add("sqrt", {reduced(m, "sum", m.b.add("square", {x}), dims, keepdim)});
  if (p == 1) return reduced(m, "sum", size, dims, keepdim);
  if (p == 0) M::unmapped("a 0-norm");
  const TensorId powers = m.b.add("pow", {size, m.b.full(p, m.b.dtype(size))});
  return m.b.add("pow", {reduced(m, "sum", powers, dims, keepdim), m.b.full(1 / p, m.b.dtype(size))});
}
Ids vector_norm(M& m) {  // (x, ord, dim, keepdim)
  const TensorId x = m.tensor(0);
  return {m.as_result(norm_of(m, x, m.real(1, 2.0), dims_of(m, 2, x), m.flag(3, false)))};
}
Ids norm_scalar(M& m) {  // (x, p); also of _foreach_norm
  const TensorId x = m.tensor(0);
  return {m.as_result(norm_of(m, x, m.real(1, 2.0), dims_of(m, SIZE_MAX, x), false))};
}
Ids norm_dims(M& m) {  // (x, p, dims, keepdim)
  const TensorId x = m.tensor(0);
  return {m.as_result(norm_of(m, x, m.real(1, 2.0), dims_of(m, 2, x), m.flag(3, false)))};
}

// correction: 1 by default
TensorId variance_of(M& m, TensorId x, const Shape& dims, double correction, bool keepdim, TensorId* mean_out) {
  const DType dtype = m.b.dtype(x);
  const bool is_small = dtype == DType::kBF16 || dtype == DType::kF16;
  x = m.b.cast(x, is_small ? DType::kF32 : dtype);
  const TensorId mean = reduced(m, "mean", x, dims, true);
  if (mean_out != nullptr) *mean_out = mean;
  const TensorId squares = m.b.add("square", {m.b.add("sub", {x, mean})});
  const TensorId sum = reduced(m, "sum", squares, dims, keepdim);
  const double count =
      static_cast<double>(element_count(m.b.shape(x))) / static_cast<double>(element_count(m.b.shape(sum)));
  return m.b.add("div", {sum, m.b.full(count - correction, m.b.dtype(sum))});
}
Ids var(M& m) {  // (x, dim, correction, keepdim)
  const TensorId x = m.tensor(0);
  return {m.as_result(variance_of(m, x, dims_of(m, 1, x), m.real(2, 1.0), m.flag(3, false), nullptr))};
}
Ids std_dev(M& m) {
  const TensorId x = m.tensor(0);
  return {
      m.as_result(m.b.add("sqrt", {variance_of(m, x, dims_of(m, 1, x), m.real(2, 1.0), m.flag(3, false), nullptr)}))};
}
Ids var_mean(M& m) {
  const TensorId x = m.tensor(0);
  TensorId mean;
  const TensorId variance = variance_of(m, x, dims_of(m, 1, x), m.real(2, 1.0), m.flag(3, false), &mean);
  return {m.as_result(variance, 0), m.b.cast(m.b.reshape(mean, m.result(1).shape), m.result(1).dtype)};
}

// ---- matmul

TensorId matmul(M& m, TensorId a, TensorId b) { return m.b.add("matmul", {a, b}); }
Ids mm(M& m) { return {matmul(m, m.tensor(0), m.tensor(1))}; }
Ids mv(M& m) {
  const TensorId column = m.b.reshape(m.tensor(1), {m.b.shape(m.tensor(1))[0], 1});
  return {m.b.reshape(matmul(m, m.tensor(0), column), m.result(0).shape)};
}
Ids dot(M& m) {
  const int64_t n = m.b.shape(m.tensor(0))[0];
  return {m.b.reshape(matmul(m, m.b.reshape(m.tensor(0), {1, n}), m.b.reshape(m.tensor(1), {n, 1})), {})};
}
// beta x + alpha a b
// (a, b, scale of a, scale of b, bias, scale of the result, dtype, fast accumulation)
Ids scaled_mm(M& m) {
  if (m.has(5)) M::unmapped("a scale of the result");
  const DType dtype = m.result(0).dtype;
  if (is_float8(dtype)) M::unmapped("a float8 result");
  const auto scales = [&](size_t i, size_t dim) {
    const TensorId x = m.tensor(i);
    const Shape shape = m.b.shape(x);
    if (element_count(shape) == 1) return m.b.reshape(x, {1, 1});
    Shape wanted = {1, 1};
    wanted[dim] = m.result(0).shape[dim];
    if (shape != wanted || m.b.dtype(x) != DType::kF32) M::unmapped("scales of blocks");
    return x;
  };
  const bool has_bias = m.has(4);
  const TensorId product = m.b.add("scaled_matmul", {m.tensor(0), m.tensor(1), scales(2, 0), scales(3, 1)},
                                   {{"dtype", has_bias ? DType::kF32 : dtype}});
  if (!has_bias) return {product};
  return {m.b.cast(m.b.add("add", {product, m.tensor(4, DType::kF32)}), dtype)};
}
Ids addmm(M& m) {
  const DType dtype = m.result(0).dtype;
  TensorId product = matmul(m, m.tensor(1), m.tensor(2));
  if (m.real(4, 1.0) != 1) product = m.b.add("mul", {product, m.tensor(4, dtype)});
  if (m.real(3, 1.0) == 0) return {product};
  TensorId added = m.tensor(0);
  if (m.real(3, 1.0) != 1) added = m.b.add("mul", {added, m.tensor(3, dtype)});
  return {m.b.add("add", {product, added})};
}

}  // namespace

std::vector<AtenRow> aten_reduce_rows() {
  return {
      {"sum", sum_all},
      {"sum.dim_IntList", sum_dims},
      {"mean", mean_all},
      {"mean.dim", mean_dims},
      {"amax", extreme_dims<true>},
      {"amin", extreme_dims<false>},
      {"max", extreme_all<true>},
      {"min", extreme_all<false>},
      {"max.dim", extreme_with_place<true>},
      {"min.dim", extreme_with_place<false>},
      {"argmax", arg_extreme<true>},
      {"argmin", arg_extreme<false>},
      {"any", truth_all<true>},
      {"all", truth_all<false>},
      {"any.dim", truth_dim<true>},
      {"all.dim", truth_dim<false>},
      {"prod", prod_all},
      {"cumsum", cumsum},
      {"linalg_vector_norm", vector_norm},
      {"norm.Scalar", norm_scalar},
      {"norm.ScalarOpt_dim", norm_dims},
      {"var.correction", var},
      {"std.correction", std_dev},
      {"var_mean.correction", var_mean},
      {"mm", mm},
      {"bmm", mm},
      {"mv", mv},
      {"dot", dot},
      {"_scaled_mm", scaled_mm},
      {"addmm", addmm},
      {"baddbmm", addmm},
  };
}

}  // namespace stepc
