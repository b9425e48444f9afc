// What this machine can do, measured: the matmul rate that MFU is relative to.
#pragma once

#include <cstdint>
#include <vector>

#include <c10/core/ScalarType.h>

namespace stepc::train {

// The product of an (rows, inner) and an (inner, columns) matrix.
struct MatmulShape {
  int64_t rows = 0;
  int64_t inner = 0;
  int64_t columns = 0;
};

// Best rate of at::mm over the shapes, in operations a second: each is run a few times, about a tenth of a second in
// all. The best, so that the MFU relative to it is never flattered by a bad shape.
double measure_matmul_rate(c10::ScalarType dtype, const std::vector<MatmulShape>& shapes);

// The most memory that this process has had resident so far.
uint64_t peak_process_bytes();

}  // namespace stepc::train
