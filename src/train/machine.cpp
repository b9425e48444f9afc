#include "train/machine.h"

#include <algorithm>
#include <chrono>

#include <sys/resource.h>

#include <ATen/ATen.h>

namespace stepc::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double rate_of(c10::ScalarType dtype, const MatmulShape& shape) {
  const at::Tensor a = at::ones({shape.rows, shape.inner}, dtype);
  const at::Tensor b = at::ones({shape.inner, shape.columns}, dtype);
  at::Tensor product = at::mm(a, b);  // warms up caches and threads
  const double flops = 2.0 * static_cast<double>(shape.rows * shape.inner * shape.columns);
  double best = 0;
  constexpr double kEnoughSeconds = 0.05;
  constexpr int kFewest = 3;
  const auto start = Clock::now();
  for (int run = 0; run < kFewest || seconds_since(start) < kEnoughSeconds; ++run) {
    const auto began = Clock::now();
    at::mm_out(product, a, b);
    best = std::max(best, flops / seconds_since(began));
  }
  return best;
}

}  // namespace

double measure_matmul_rate(c10::ScalarType dtype, const std::vector<MatmulShape>& shapes) {
  double best = 0;
  for (const MatmulShape& shape : shapes) best = std::max(best, rate_of(dtype, shape));
  return best;
}

uint64_t peak_process_bytes() {
  rusage usage = {};
  constexpr uint64_t kKibibyte = 1024;
  return getrusage(RUSAGE_SELF, &usage) == 0 ? static_cast<uint64_t>(usage.ru_maxrss) * kKibibyte : 0;
}

}  // namespace stepc::train
