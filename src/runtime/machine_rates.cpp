#include "runtime/machine_rates.h"

#include <algorithm>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "base/clock.h"

namespace stepc {
namespace {

constexpr double kEnoughSeconds = 0.05;

double rate_of(const at::TensorOptions& options, const MatmulShape& shape) {
  const at::Tensor a = at::ones({shape.rows, shape.inner}, options);
  const at::Tensor b = at::ones({shape.inner, shape.columns}, options);
  at::Tensor product = at::empty({shape.rows, shape.columns}, options);
  return best_rate(shape.flops(), [&] {
    at::mm_out(product, a, b);
    if (!product.is_cpu()) static_cast<void>(product.view(-1)[0].item<double>());  // waits for the device
  });
}

}  // namespace

double MatmulShape::flops() const {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(inner) * static_cast<double>(columns);
}

double best_rate(double amount, const std::function<void()>& work) {
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

double measure_matmul_rate(c10::ScalarType dtype, std::span<const MatmulShape> shapes, const c10::Device& device) {
  // A machine without instructions for a dtype multiplies it a thousand times slower: a small matmul tells.
  constexpr int64_t kSmall = 256;
  constexpr double kLongSeconds = 4 * kEnoughSeconds;
  const at::TensorOptions options = at::TensorOptions(device).dtype(dtype);
  double best = rate_of(options, {kSmall, kSmall, kSmall});
  for (const MatmulShape& shape : shapes)
    if (shape.flops() < best * kLongSeconds) best = std::max(best, rate_of(options, shape));
  return best;
}

}  // namespace stepc
