// The two element types of the blocked kernels, and conversions between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace stepc::blocked {

enum class Number : uint8_t { kF32, kBf16 };

struct Bf16 {
  uint16_t bits = 0;
};

template <class T>
inline constexpr Number kNumberOf = sizeof(T) == sizeof(float) ? Number::kF32 : Number::kBf16;

constexpr size_t bytes_of(Number number) { return number == Number::kF32 ? sizeof(float) : sizeof(Bf16); }

inline float to_float(float value) { return value; }
inline float to_float(Bf16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float result = 0;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

// To nearest, ties to even; NaN stays NaN.
inline Bf16 to_bf16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return {static_cast<uint16_t>((bits >> 16) | 0x40U)};
  return {static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}

template <class T>
T from_float(float value) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return value;
  } else {
    return to_bf16(value);
  }
}

constexpr int64_t ceil_div(int64_t value, int64_t step) { return (value + step - 1) / step; }
constexpr int64_t round_up(int64_t value, int64_t step) { return ceil_div(value, step) * step; }

}  // namespace stepc::blocked
