// Array: a dense tensor's values for the reference interpreter, row-major. Floating-point values are doubles already
// rounded to the dtype, integers and bools are int64.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ops/rounding.h"

namespace stepc {

struct Array {
  TensorType type;
  std::vector<double> reals;      // of a floating-point dtype
  std::vector<int64_t> integers;  // of any other

  Array() = default;
  explicit Array(TensorType of);  // zeros

  [[nodiscard]] int64_t count() const { return element_count(type.shape); }
  [[nodiscard]] bool is_real() const { return is_floating(type.dtype); }
  [[nodiscard]] double real(int64_t i) const;      // converted where it is an integer
  [[nodiscard]] int64_t integer(int64_t i) const;  // truncated where it is a real
  // Rounds or wraps to the dtype.
  void set(int64_t i, double value);
  void set(int64_t i, int64_t value);
};

// The same type and the same values bit by bit, NaN equal to NaN.
bool same_bits(const Array& a, const Array& b);
// The largest |a - b| / (1 + |b|); infinity when shapes differ or only one has a NaN.
double largest_error(const Array& a, const Array& b);
std::string to_text(const Array& array);

// Little-endian bytes of the elements, as a machine holds them, and back.
std::vector<uint8_t> to_bytes(const Array& array);
Array from_bytes(const TensorType& type, const std::vector<uint8_t>& bytes);

// Calls f(index, position) for every index of a shape in row-major order.
template <class F>
void for_each_index(const Shape& shape, F&& f) {
  Shape index(shape.size(), 0);
  const int64_t count = element_count(shape);
  for (int64_t position = 0; position < count; ++position) {
    f(static_cast<const Shape&>(index), position);
    for (size_t d = shape.size(); d-- > 0;) {
      if (++index[d] < shape[d]) break;
      index[d] = 0;
    }
  }
}

// Result element i is element source(index of i) of x; a negative source gives zero.
template <class F>
Array rearranged(const Array& x, const Shape& shape, F&& source) {
  Array out({x.type.dtype, shape});
  for_each_index(shape, [&](const Shape& index, int64_t i) {
    const int64_t from = source(index);
    if (from < 0) return;
    if (out.is_real())
      out.reals[static_cast<size_t>(i)] = x.reals[static_cast<size_t>(from)];
    else
      out.integers[static_cast<size_t>(i)] = x.integers[static_cast<size_t>(from)];
  });
  return out;
}

inline int64_t dot(const Shape& index, const Shape& strides) {
  int64_t position = 0;
  for (size_t d = 0; d < index.size(); ++d) position += index[d] * strides[d];
  return position;
}
// Element of `value` written to place `to` of `out`.
void copy_element(Array& out, int64_t to, const Array& value, int64_t from);

}  // namespace stepc
