#include "ops/scalar_expr.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "base/check.h"
#include "ops/op_def.h"
#include "ops/rounding.h"

namespace stepc {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

double on(std::string_view op, const std::vector<double>& arguments) {
  return evaluate(scalar_expr(op_def(op).body), arguments, {});
}
int64_t on_integers(std::string_view op, const std::vector<int64_t>& arguments) {
  return evaluate(scalar_expr(op_def(op).body), arguments, {});
}

TEST(ScalarExpr, WritesEachStepOnce) {
  const ScalarExpr silu = scalar_expr(op_def("silu").body);
  EXPECT_EQ(to_text(silu), "0: argument 0\n1: constant 1\n2: neg 0\n3: exp 2\n4: add 1 3\n5: div 0 4\n");
  EXPECT_EQ(formula_text(silu), "div(a, add(1, exp(neg(a))))");
}

TEST(ScalarExpr, SpecialValues) {
  EXPECT_EQ(on("sigmoid", {-kInf}), 0.0);
  EXPECT_EQ(on("sigmoid", {kInf}), 1.0);
  EXPECT_TRUE(std::isnan(on("maximum", {NAN, 1.0})));
  EXPECT_TRUE(std::isnan(on("minimum", {1.0, NAN})));
  EXPECT_EQ(on("relu", {-0.5}), 0.0);
  EXPECT_TRUE(std::isnan(on("relu", {NAN})));
  EXPECT_EQ(on("where", {1.0, 3.0, NAN}), 3.0);
  EXPECT_EQ(on("round", {2.5}), 2.0);
  EXPECT_EQ(on("remainder", {-7.0, 3.0}), 2.0);
  EXPECT_EQ(on("fmod", {-7.0, 3.0}), -1.0);
  EXPECT_EQ(on("rsqrt", {0.0}), kInf);
}

TEST(ScalarExpr, IntegersWrapAndDivideDown) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(on_integers("add", {most, 1}), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(on_integers("floor_div", {-7, 2}), -4);
  EXPECT_EQ(on_integers("remainder", {-7, 2}), 1);
  EXPECT_EQ(on_integers("fmod", {-7, 2}), -1);
  EXPECT_EQ(on_integers("floor_div", {std::numeric_limits<int64_t>::min(), -1}), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(on_integers("pow", {3, 4}), 81);
  EXPECT_THROW(on_integers("floor_div", {1, 0}), InternalError);
}

// Derivatives against differences.
TEST(ScalarExpr, BackwardBodiesAreDerivatives) {
  const struct {
    std::string_view forward, backward;
    bool of_output;
  } pairs[] = {{"sigmoid", "sigmoid_backward", true},      {"tanh", "tanh_backward", true},
               {"silu", "silu_backward", false},           {"gelu", "gelu_backward", false},
               {"gelu_tanh", "gelu_tanh_backward", false}, {"relu", "relu_backward", false}};
  for (const auto& [forward, backward, of_output] : pairs)
    for (double x : {-3.0, -0.7, 0.1, 1.3, 4.0}) {
      const double h = 1e-5;
      const double slope = (on(forward, {x + h}) - on(forward, {x - h})) / (2 * h);
      EXPECT_NEAR(on(backward, {2.0, of_output ? on(forward, {x}) : x}), 2 * slope, 1e-8) << forward << " at " << x;
    }
}

TEST(Rounding, NearestTiesToEven) {
  EXPECT_EQ(rounded(1.0 + 0x1p-8, DType::kBF16), 1.0);
  EXPECT_EQ(rounded(1.0 + 3 * 0x1p-8, DType::kBF16), 1.0 + 0x1p-6);
  EXPECT_EQ(rounded(65519.0, DType::kF16), 65504.0);
  EXPECT_EQ(rounded(65520.0, DType::kF16), kInf);
  EXPECT_EQ(rounded(0x1p-24, DType::kF16), 0x1p-24);
  EXPECT_EQ(rounded(0x1p-26, DType::kF16), 0.0);
  EXPECT_EQ(rounded(0.1, DType::kF32), static_cast<double>(0.1F));
  EXPECT_EQ(wrapped(300, DType::kU8), 44);
  EXPECT_EQ(wrapped(-129, DType::kI8), 127);
  EXPECT_EQ(wrapped(7, DType::kBool), 1);
  EXPECT_EQ(truncated(-2.9), -2);
  EXPECT_EQ(truncated(NAN), std::numeric_limits<int64_t>::min());
}

}  // namespace
}  // namespace stepc
