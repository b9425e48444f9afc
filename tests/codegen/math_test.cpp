// The elementary functions of f32 against the C library's in double: errors in units of the last place over random
// and special arguments, for this CPU and for the plainest one.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "ops/graph_builder.h"
#include "tests/codegen/run_kernel.h"

namespace stepc {
namespace {

struct Function {
  const char* op;
  double (*reference)(double);
  double bound;      // ulp
  double low, high;  // beside all kinds of bits, arguments from here
};
double rsqrt_of(double x) { return 1 / std::sqrt(x); }
const Function kFunctions[] = {
    {"exp", std::exp, 1.5, -110, 95},  {"log", std::log, 1.5, 0, 10},   {"log1p", std::log1p, 2, -1, 10},
    {"expm1", std::expm1, 2, -20, 95}, {"tanh", std::tanh, 2, -12, 12}, {"erf", std::erf, 2, -5, 5},
    {"sin", std::sin, 2, -100, 100},   {"cos", std::cos, 2, -100, 100}, {"rsqrt", rsqrt_of, 1.5, 0, 100},
    {"sqrt", std::sqrt, 0.5, 0, 1e6},  {"tan", std::tan, 1, -10, 10},
};

std::vector<float> arguments(const Function& function) {
  std::mt19937_64 random(7);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> out = {0.0F,    -0.0F,   1.0F,    -1.0F,     kInfinity, -kInfinity, NAN,   1e-45F,
                            -1e-45F, 1e-40F,  -1e-40F, 0x1p-126F, 3.4e38F,   -3.4e38F,   88.7F, 88.8F,
                            -87.4F,  -103.9F, -104.1F, 0x1p-24F,  -0x1p-24F, 0.5F,       2.0F,  10.0F};
  std::uniform_real_distribution<float> inside(static_cast<float>(function.low), static_cast<float>(function.high));
  for (int i = 0; i < 60000; ++i) out.push_back(inside(random));
  for (int i = 0; i < 60000; ++i) out.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  return out;
}

// |have - want| in units of the last place of f32 at want.
double ulps(float have, double want) {
  const auto nearest = static_cast<float>(want);
  if (std::isnan(want) || std::isnan(have)) return std::isnan(want) == std::isnan(have) ? 0 : HUGE_VAL;
  if (std::isinf(nearest) || std::isinf(have)) {
    if (nearest == have) return 0;
    // One unit before infinity.
    return std::abs(want) > 3.4028234e38 && std::abs(have) > 3.4028234e38 ? 1 : HUGE_VAL;
  }
  const int exponent = std::max(want == 0 ? -126 : std::ilogb(want), -126);
  return std::abs(static_cast<double>(have) - want) / std::ldexp(1.0, exponent - 23);
}

TEST(Math, ErrorsStayWithinTheirBounds) {
  for (const CpuTarget& target : {host_cpu(), generic_cpu()}) {
    KernelCompiler compiler(target);
    for (const Function& function : kFunctions) {
      const std::vector<float> x = arguments(function);
      GraphBuilder b;
      const Shape shape = {static_cast<int64_t>(x.size())};
      const TensorId in = b.graph().add_input({InputKind::kCaptured, "0", {}, {}, 0}, {DType::kF32, shape});
      b.graph().outputs.emplace_back();
      b.graph().outputs.back().tensor = b.add(function.op, {in});
      const auto kernel = compiler.compile(lower(b.graph()));
      std::vector<float> y(x.size());
      run_phases(*kernel, {const_cast<float*>(x.data()), y.data()}, Cuts::kWhole);  // NOLINT: only read
      double worst = 0;
      float at = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const bool is_turning = std::strcmp(function.op, "sin") == 0 || std::strcmp(function.op, "cos") == 0;
        if (is_turning && std::isfinite(x[i]) && std::abs(x[i]) >= 0x1p27F) {
          EXPECT_LE(std::abs(y[i]), 1) << function.op << " of " << x[i];
          continue;
        }
        const double error = ulps(y[i], function.reference(static_cast<double>(x[i])));
        if (error > worst) {
          worst = error;
          at = x[i];
        }
      }
      std::printf("%-6s %-16s %.2f ulp at %a\n", function.op, target.name.c_str(), worst, static_cast<double>(at));
      EXPECT_LE(worst, function.bound) << function.op << " at " << at << " on " << target.name;
    }
  }
}

}  // namespace
}  // namespace stepc
