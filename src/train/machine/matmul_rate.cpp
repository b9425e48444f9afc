#include "train/machine/matmul_rate.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include <ATen/Functions.h>

#include "base/clock.h"
#include "base/text.h"
#include "blocked/matmul.h"
#include "cost/rates.h"
#include "models/decoder.h"
#include "runtime/machine_rates.h"
#include "runtime/micro_kernels.h"

namespace stepc::train {
namespace {

constexpr int64_t kSide = 1024;
constexpr std::array<MatmulShape, 2> kLarge = {{{kSide, kSide, kSide}, {2 * kSide, kSide, kSide}}};

// The best of a few runs of stepc's own matmul.
double blocked_rate(at::ScalarType dtype, const MatmulShape& shape, int threads) {
  const auto number = dtype == at::kFloat ? blocked::Number::kF32 : blocked::Number::kBf16;
  const at::Tensor a = at::ones({shape.rows, shape.inner}, dtype);
  const at::Tensor b = at::ones({shape.inner, shape.columns}, dtype);
  at::Tensor product = at::empty({shape.rows, shape.columns}, dtype);
  const std::array<blocked::Product, 1> products = {{{.n = shape.columns,
                                                      .b = {b.const_data_ptr(), shape.columns, 1},
                                                      .c = {product.mutable_data_ptr(), number, shape.columns}}}};
  const blocked::Matmul call = {.type = number,
                                .m = shape.rows,
                                .k = shape.inner,
                                .a = {a.const_data_ptr(), shape.inner, 1},
                                .products = products};
  const at::Tensor workspace = at::empty({static_cast<int64_t>(blocked::workspace_bytes(call, threads))}, at::kByte);
  const blocked::MicroKernels kernels = probe_micro_kernels();
  constexpr int kRuns = 5;
  double least_seconds = std::numeric_limits<double>::infinity();
  for (int run = 0; run < kRuns; ++run) {
    const auto began = Clock::now();
    blocked::matmul(call, kernels, threads, workspace.mutable_data_ptr());
    least_seconds = std::min(least_seconds, seconds_since(began));
  }
  return 2.0 * static_cast<double>(shape.rows * shape.inner * shape.columns) / least_seconds;
}

double default_rate(at::ScalarType dtype) {
  if (dtype != at::kFloat && dtype != at::kBFloat16) return 0;
  double rate = 0;
  for (const KernelOwner owner : {KernelOwner::kLibrary, KernelOwner::kBlocked})
    for (const MatmulShape& shape : kLarge)
      rate = std::max(rate, matmul_rate(Rates(), owner, dtype == at::kFloat ? DType::kF32 : DType::kBF16, shape.rows,
                                        shape.columns, shape.inner));
  return rate;
}

// Of a device's own library. Larger matrices are taken until a product takes long beside what a launch costs.
double device_rate(at::ScalarType dtype, const at::Device& device) {
  constexpr int64_t kLargestSide = 8 * kSide;
  constexpr double kLongSeconds = 5e-3;
  const auto options = at::TensorOptions(device).dtype(dtype);
  double rate = 0;
  for (int64_t side = kSide; side <= kLargestSide; side *= 2) {
    const at::Tensor a = at::ones({side, side}, options);
    const auto multiply = [&] { static_cast<void>(at::mm(a, a).view(-1)[0].item<double>()); };
    multiply();
    const auto began = Clock::now();
    multiply();
    const double seconds = seconds_since(began);
    const auto n = static_cast<double>(side);
    rate = std::max(rate, 2 * n * n * n / seconds);
    if (seconds > kLongSeconds) break;
  }
  return rate;
}

}  // namespace

RunRate measure_run_rate(const RunConfig& config, const at::Device& device) {
  if (!device.is_cpu()) return {device_rate(models::scalar_type(config.model.compute), device), 0};
  const at::ScalarType dtype = models::scalar_type(config.model.compute);
  RunRate rate = {measure_matmul_rate(dtype, {kLarge.begin(), kLarge.end()}), default_rate(dtype)};
  if (config.train.mode != "fast" || (dtype != at::kFloat && dtype != at::kBFloat16)) return rate;
  for (const MatmulShape& shape : kLarge)
    rate.measured = std::max(rate.measured, blocked_rate(dtype, shape, static_cast<int>(config.train.threads)));
  return rate;
}

std::optional<std::string> slow_float16(double float16_rate, double bfloat16_rate) {
  constexpr double kMuch = 2;
  const double times = bfloat16_rate / float16_rate;
  if (times < kMuch) return std::nullopt;
  return str(
      "model.compute = \"float16\": this machine multiplies float16 matrices {:.0f} times slower than bfloat16; "
      "\"bfloat16\" is the faster choice",
      times);
}

std::optional<std::string> slow_float16_here(const RunConfig& config) {
  if (config.model.compute != "float16") return std::nullopt;
  constexpr int64_t kSmall = 256;  // a slow one takes seconds for a large matmul
  const std::vector<MatmulShape> shape = {{kSmall, kSmall, kSmall}};
  return slow_float16(measure_matmul_rate(at::kHalf, shape), measure_matmul_rate(at::kBFloat16, shape));
}

}  // namespace stepc::train
