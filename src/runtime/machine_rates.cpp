#include "runtime/machine_rates.h"

#include <algorithm>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "base/clock.h"

namespace stepc {
namespace {

constexpr double kEnoughSeconds = 0.05;

// The best of a few runs, `amount` a run; of a long one, the first.
template <class Work>
double best_rate(double amount, const Work& work) {
  const auto start = Clock::now();
  work();  // warms up caches and threads
  if (const double first = seconds_since(start); first > kEnoughSeconds) return amount / first;
  double best = 0;
  constexpr int kFewest = 3;
  for (int run = 0; run < kFewest || seconds_since(start) < kEnoughSeconds; ++run) {
    const auto began = Clock::now();
    work();
    best = std::max(best, amount / seconds_since(began));
  }
  return best;
}

double flops_of(const MatmulShape& shape) {
  return 2.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.inner) * static_cast<double>(shape.columns);
}

double rate_of(c10::ScalarType dtype, const MatmulShape& shape) {
  const at::Tensor a = at::ones({shape.rows, shape.inner}, dtype);
  const at::Tensor b = at::ones({shape.inner, shape.columns}, dtype);
  at::Tensor product = at::empty({shape.rows, shape.columns}, dtype);
  return best_rate(flops_of(shape), [&] { at::mm_out(product, a, b); });
}

}  // namespace

double measure_matmul_rate(c10::ScalarType dtype, const std::vector<MatmulShape>& shapes) {
  // A machine without instructions for a dtype multiplies it a thousand times slower: a small matmul tells.
  constexpr int64_t kSmall = 256;
  constexpr double kLongSeconds = 4 * kEnoughSeconds;
  double best = rate_of(dtype, {kSmall, kSmall, kSmall});
  for (const MatmulShape& shape : shapes)
    if (flops_of(shape) < best * kLongSeconds) best = std::max(best, rate_of(dtype, shape));
  return best;
}

}  // namespace stepc
