// How numbers become elements of a dtype: what interpreter, constant folding and every kernel agree on.
#pragma once

#include <cstdint>

#include "ir/dtype.h"

namespace stepc {

// The nearest value of a floating-point dtype, ties to even; beyond the largest it is infinity, of f8e4m3 the largest.
double rounded(double value, DType dtype);
// The low bits of an integer, as the integer dtype reads them; bool: whether it is not 0.
int64_t wrapped(int64_t value, DType dtype);
// Toward zero; out of range is the smallest integer, as x86 machines have it.
int64_t truncated(double value);

}  // namespace stepc
