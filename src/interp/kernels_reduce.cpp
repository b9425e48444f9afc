#include <algorithm>
#include <cmath>
#include <limits>

#include "interp/kernels.h"

namespace stepc {

namespace {

using Arrays = std::vector<Array>;
using Types = std::vector<TensorType>;

// Strides into the result for each operand dimension, 0 along the reduced ones.
Shape result_strides(const Shape& shape, const Shape& dims) {
  Shape kept = shape;
  for (int64_t dim : dims) kept[static_cast<size_t>(dim)] = 1;
  Shape strides = contiguous_strides(kept);
  for (int64_t dim : dims) strides[static_cast<size_t>(dim)] = 0;
  return strides;
}

// Folds in double or int64 and rounds once at the end.
template <class RealFold, class IntegerFold>
Array folded(const Array& x, const Shape& dims, const TensorType& type, double real_start, int64_t integer_start,
             RealFold&& real_fold, IntegerFold&& integer_fold) {
  const Shape strides = result_strides(x.type.shape, dims);
  const auto size = static_cast<size_t>(element_count(type.shape));
  std::vector<double> reals(size, real_start);
  std::vector<int64_t> integers(size, integer_start);
  for_each_index(x.type.shape, [&](const Shape& index, int64_t i) {
    const auto to = static_cast<size_t>(dot(index, strides));
    if (x.is_real())
      reals[to] = real_fold(reals[to], x.real(i));
    else
      integers[to] = integer_fold(integers[to], x.integer(i));
  });
  Array out(type);
  for (int64_t i = 0; i < out.count(); ++i) {
    if (x.is_real())
      out.set(i, reals[static_cast<size_t>(i)]);
    else
      out.set(i, integers[static_cast<size_t>(i)]);
  }
  return out;
}

int64_t lowest(DType dtype) {
  switch (dtype) {
    case DType::kI8:
      return std::numeric_limits<int8_t>::min();
    case DType::kI16:
      return std::numeric_limits<int16_t>::min();
    case DType::kI32:
      return std::numeric_limits<int32_t>::min();
    case DType::kI64:
      return std::numeric_limits<int64_t>::min();
    default:
      return 0;
  }
}
int64_t highest(DType dtype) {
  return dtype == DType::kBool                                  ? 1
         : dtype == DType::kU8                                  ? 255
         : lowest(dtype) == std::numeric_limits<int64_t>::min() ? std::numeric_limits<int64_t>::max()
                                                                : -(lowest(dtype) + 1);
}
int64_t add_wrapping(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
double nan_max(double a, double b) { return std::isnan(a) ? a : std::isnan(b) ? b : std::max(a, b); }
double nan_min(double a, double b) { return std::isnan(a) ? a : std::isnan(b) ? b : std::min(a, b); }

// The sum of one number is that number, so sums start from -0; the sum of none is 0.
Arrays sum(const Arrays& in, const Attrs& attrs, const Types& types) {
  const double start = in[0].count() == 0 ? 0.0 : -0.0;
  return {folded(in[0], attrs.get<Shape>("dims"), types[0], start, 0, std::plus<>(), add_wrapping)};
}
Arrays prod(const Arrays& in, const Attrs& attrs, const Types& types) {
  return {folded(in[0], attrs.get<Shape>("dims"), types[0], 1.0, 1, std::multiplies<>(), [](int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  })};
}
Arrays max(const Arrays& in, const Attrs& attrs, const Types& types) {
  return {folded(in[0], attrs.get<Shape>("dims"), types[0], -HUGE_VAL, lowest(types[0].dtype), nan_max,
                 [](int64_t a, int64_t b) { return std::max(a, b); })};
}
Arrays min(const Arrays& in, const Attrs& attrs, const Types& types) {
  return {folded(in[0], attrs.get<Shape>("dims"), types[0], HUGE_VAL, highest(types[0].dtype), nan_min,
                 [](int64_t a, int64_t b) { return std::min(a, b); })};
}

Arrays arg_best(const Arrays& in, const Attrs& attrs, const Types& types, bool largest) {
  const Shape dims = {attrs.get<int64_t>("dim")};
  const Shape strides = result_strides(in[0].type.shape, dims);
  std::vector<int64_t> best(static_cast<size_t>(element_count(types[0].shape)), -1);
  Array out(types[0]);
  for_each_index(in[0].type.shape, [&](const Shape& index, int64_t i) {
    const int64_t to = dot(index, strides);
    int64_t& chosen = best[static_cast<size_t>(to)];
    if (chosen >= 0) {
      const double old = in[0].real(chosen);
      const double now = in[0].real(i);
      if (std::isnan(old) || (!std::isnan(now) && (largest ? now <= old : now >= old))) return;
    }
    chosen = i;
    out.set(to, index[static_cast<size_t>(dims[0])]);
  });
  return {out};
}
Arrays argmax(const Arrays& in, const Attrs& attrs, const Types& types) { return arg_best(in, attrs, types, true); }
Arrays argmin(const Arrays& in, const Attrs& attrs, const Types& types) { return arg_best(in, attrs, types, false); }

Arrays cumsum(const Arrays& in, const Attrs& attrs, const Types& types) {
  const auto dim = static_cast<size_t>(attrs.get<int64_t>("dim"));
  const int64_t stride = contiguous_strides(types[0].shape)[dim];
  std::vector<double> reals = in[0].reals;
  std::vector<int64_t> integers = in[0].integers;
  Array out(types[0]);
  for_each_index(types[0].shape, [&](const Shape& index, int64_t i) {
    const auto here = static_cast<size_t>(i);
    const auto before = static_cast<size_t>(i - stride);
    if (out.is_real()) {
      if (index[dim] > 0) reals[here] += reals[before];
      out.set(i, reals[here]);
    } else {
      if (index[dim] > 0) integers[here] = add_wrapping(integers[here], integers[before]);
      out.set(i, integers[here]);
    }
  });
  return {out};
}

}  // namespace

const KernelTable& reduce_kernels() {
  static const KernelTable kTable = {{"sum", sum},       {"prod", prod},     {"max", max},
                                     {"min", min},       {"any", max},       {"all", min},
                                     {"argmax", argmax}, {"argmin", argmin}, {"cumsum", cumsum}};
  return kTable;
}

}  // namespace stepc
