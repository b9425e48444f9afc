// The 16 bits of an f16 and its value. Inline: kernels' interpreters take elements apart one by one.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace stepc {

// Of a value that rounded() has made one of f16's.
inline uint16_t f16_bits(double value) {
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  if (std::isnan(value)) return sign | 0x7E00;
  if (std::isinf(value)) return sign | 0x7C00;
  const double size = std::abs(value);
  if (size < 0x1p-14) return static_cast<uint16_t>(sign | static_cast<uint16_t>(size * 0x1p24));
  const int exponent = std::ilogb(size);
  const auto fraction = static_cast<uint16_t>(std::ldexp(size, 10 - exponent)) & 0x3FF;
  return static_cast<uint16_t>(sign | ((exponent + 15) << 10) | fraction);
}
inline double f16_value(uint16_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 0x3FF;
  if (exponent == 31) return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

}  // namespace stepc
