// This machine's matmul rates, measured: MFU is relative to them. Nothing that is compiled depends on them.
#pragma once

#include <cstdint>
#include <vector>

#include <c10/core/ScalarType.h>

namespace stepc {

// The product of an (rows, inner) and an (inner, columns) matrix.
struct MatmulShape {
  int64_t rows = 0;
  int64_t inner = 0;
  int64_t columns = 0;
};

// Best rate of at::mm over the shapes, in operations per second. Each shape runs a few times, about a tenth of a second
// in all. A small matmul runs first; shapes that would take long at its rate, on a machine that is slow at this dtype,
// are left out. The best rate counts, so that a bad shape never flatters the MFU relative to it.
double measure_matmul_rate(c10::ScalarType dtype, const std::vector<MatmulShape>& shapes);

}  // namespace stepc
