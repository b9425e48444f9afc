// Powers of integers as the ops have them.
#pragma once

#include <cstdint>

namespace stepc {

// Base to a whole power, modulo 2^64; a negative exponent leaves 1 and -1 what they are and makes 0 of the rest.
inline int64_t integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 == 0 ? 1 : -1) : 0;
  uint64_t result = 1;
  auto factor = static_cast<uint64_t>(base);
  for (auto rest = static_cast<uint64_t>(exponent); rest != 0; rest >>= 1) {
    if ((rest & 1) != 0) result *= factor;
    factor *= factor;
  }
  return static_cast<int64_t>(result);
}

}  // namespace stepc
