// The 8 bits of a float8 and its value. Inline: kernels' interpreters take elements apart one by one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ir/dtype.h"

namespace stepc {

struct F8Format {
  int fraction_bits, bias;
  double largest;
};
constexpr F8Format f8_format(DType dtype) {
  return dtype == DType::kF8E4M3 ? F8Format{3, 7, 448} : F8Format{2, 15, 57344};
}

// Of a value that rounded() has made one of the dtype's. A NaN is the one with all bits set, as torch makes it.
inline uint8_t f8_bits(double value, DType dtype) {
  const F8Format format = f8_format(dtype);
  const auto sign = static_cast<uint8_t>(std::signbit(value) ? 0x80 : 0);
  if (std::isnan(value)) return sign | 0x7F;
  if (std::isinf(value)) return sign | 0x7C;  // of e5m2 alone
  const double size = std::abs(value);
  const int exponent = size == 0 ? 1 - format.bias : std::max(std::ilogb(size), 1 - format.bias);
  const auto units = static_cast<int>(std::ldexp(size, format.fraction_bits - exponent));  // with the leading one
  return static_cast<uint8_t>(sign | (units + ((exponent + format.bias - 1) << format.fraction_bits)));
}
inline double f8_value(uint8_t bits, DType dtype) {
  const F8Format format = f8_format(dtype);
  const int size = bits & 0x7F;
  const double sign = (bits & 0x80) != 0 ? -1.0 : 1.0;
  const bool is_nan = dtype == DType::kF8E4M3 ? size == 0x7F : size > 0x7C;
  if (is_nan) return std::copysign(std::numeric_limits<double>::quiet_NaN(), sign);
  if (dtype == DType::kF8E5M2 && size == 0x7C) return sign * HUGE_VAL;
  const int exponent = size >> format.fraction_bits;
  const int one = exponent == 0 ? 0 : 1 << format.fraction_bits;
  const int fraction = size & ((1 << format.fraction_bits) - 1);
  return sign * std::ldexp(one + fraction, std::max(exponent, 1) - format.bias - format.fraction_bits);
}

}  // namespace stepc
