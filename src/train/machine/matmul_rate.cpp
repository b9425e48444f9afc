#include "train/machine/matmul_rate.h"

#include <algorithm>
#include <array>

#include <ATen/Functions.h>

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
// Small products take little on a device beside their launch.
constexpr std::array<MatmulShape, 4> kLargeOnDevice = {{{kSide, kSide, kSide},
                                                        {2 * kSide, 2 * kSide, 2 * kSide},
                                                        {4 * kSide, 4 * kSide, 4 * kSide},
                                                        {8 * kSide, 8 * kSide, 8 * kSide}}};

// The rate of stepc's own matmul.
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
  return best_rate(shape.flops(), [&] { blocked::matmul(call, kernels, threads, workspace.mutable_data_ptr()); });
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

}  // namespace

RunRate measure_run_rate(const RunConfig& config, const at::Device& device) {
  const at::ScalarType dtype = models::scalar_type(config.model.compute);
  if (!device.is_cpu()) return {measure_matmul_rate(dtype, kLargeOnDevice, device), 0};
  RunRate rate = {measure_matmul_rate(dtype, kLarge), default_rate(dtype)};
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
  constexpr std::array<MatmulShape, 1> shape = {{{kSmall, kSmall, kSmall}}};
  return slow_float16(measure_matmul_rate(at::kHalf, shape), measure_matmul_rate(at::kBFloat16, shape));
}

}  // namespace stepc::train
