// This machine's matmul rates, measured: MFU is relative to them. Nothing that is compiled depends on them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace stepc {

// The product of an (rows, inner) and an (inner, columns) matrix.
struct MatmulShape {
  int64_t rows = 0;
  int64_t inner = 0;
  int64_t columns = 0;
  [[nodiscard]] double flops() const;
};

// The rate of the best of a few runs, in `amount` a second; of long work that of the first.
double best_rate(double amount, const std::function<void()>& work);

// Best rate of at::mm over the shapes, in operations per second. Each shape runs a few times, about a tenth of a second
// in all. A small matmul runs first; shapes that would take long at its rate, on a machine that is slow at this dtype,
// are left out. The best rate counts, so that a bad shape never flatters the MFU relative to it.
double measure_matmul_rate(c10::ScalarType dtype, std::span<const MatmulShape> shapes,
                           const c10::Device& device = c10::kCPU);

}  // namespace stepc
