// Combine: how many elements become one. Of bools kMax is any and kMin is all.
#pragma once

#include <cstdint>

namespace stepc {

enum class Combine : uint8_t { kSum, kProduct, kMax, kMin };

}  // namespace stepc
