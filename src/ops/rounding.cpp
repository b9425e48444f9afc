#include "ops/rounding.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "ops/f8_bits.h"

namespace stepc {

namespace {
// Rounds to a format with `digits` significant bits whose smallest normal exponent is `lowest`.
double round_to_format(double value, int digits, int lowest, double largest) {
  if (!std::isfinite(value) || value == 0) return value;
  const int exponent = std::max(std::ilogb(value), lowest);
  const double unit = std::ldexp(1.0, exponent - digits + 1);
  const double result = std::nearbyint(value / unit) * unit;
  return std::abs(result) > largest ? std::copysign(std::numeric_limits<double>::infinity(), value) : result;
}
}  // namespace

int64_t truncated(double value) {
  return std::abs(value) < 0x1p63 ? static_cast<int64_t>(value) : std::numeric_limits<int64_t>::min();
}

double rounded(double value, DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return value;
    case DType::kF32:
      return static_cast<double>(static_cast<float>(value));
    case DType::kBF16:
      return round_to_format(value, 8, -126, 0x1.FEp127);
    case DType::kF16:
      return round_to_format(value, 11, -14, 65504.0);
    case DType::kF8E4M3:
    case DType::kF8E5M2: {
      const F8Format format = f8_format(dtype);
      const double result = round_to_format(value, format.fraction_bits + 1, 1 - format.bias, format.largest);
      const bool is_over = dtype == DType::kF8E4M3 && std::isinf(result);  // it has no infinities
      return is_over ? std::copysign(format.largest, value) : result;
    }
    default:
      INTERNAL_CHECK(false, "{} is not interpreted", name_of(dtype));
  }
  return value;
}

int64_t wrapped(int64_t value, DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return value != 0 ? 1 : 0;
    case DType::kU8:
      return static_cast<uint8_t>(value);
    case DType::kI8:
      return static_cast<int8_t>(value);
    case DType::kI16:
      return static_cast<int16_t>(value);
    case DType::kI32:
      return static_cast<int32_t>(value);
    case DType::kI64:
      return value;
    default:
      INTERNAL_CHECK(false, "{} is no integer type", name_of(dtype));
  }
  return value;
}

}  // namespace stepc
