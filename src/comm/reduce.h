// Reduces several parts of the same size to one, in their order.
#pragma once

#include <cstdint>
#include <span>

#include <c10/core/ScalarType.h>

#include "ir/sharding.h"

namespace stepc {

// out[i] = parts[0][i] + parts[1][i] + ..., or their maximum or minimum, where NaN wins. Sums of bf16 and f16 are made
// in float32 and rounded once; those of bool are true if one part is. `out` may be one of the parts. Runs on LibTorch's
// threads. Throws InternalError for element types without an order or a sum.
void reduce_parts(std::span<const void* const> parts, void* out, int64_t count, c10::ScalarType type, ReduceOp how);

}  // namespace stepc
