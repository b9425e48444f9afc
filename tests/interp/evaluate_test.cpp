// Ops on known values, worked out by hand, from formulas, or by PyTorch.
#include "interp/evaluate.h"

#include <cmath>

#include <gtest/gtest.h>

#include "base/check.h"
#include "tests/expect_user_error.h"
#include "tests/ops/op_examples.h"

namespace stepc {
namespace {

using test::f64;

Array reals(Shape shape, std::vector<double> values, DType dtype = DType::kF64) {
  Array out({dtype, std::move(shape)});
  for (size_t i = 0; i < values.size(); ++i) out.set(static_cast<int64_t>(i), values[i]);
  return out;
}
Array integers(Shape shape, std::vector<int64_t> values) {
  Array out({DType::kI64, std::move(shape)});
  out.integers = std::move(values);
  return out;
}
std::vector<Array> run_all(std::string_view op, const std::vector<Array>& inputs, Attrs attrs = {}) {
  return evaluate(op_def(op), inputs, complete_attrs(op_def(op), std::move(attrs)));
}
Array run(std::string_view op, const std::vector<Array>& inputs, Attrs attrs = {}) {
  return run_all(op, inputs, std::move(attrs)).at(0);
}
// A fixed smooth pattern of numbers.
Array pattern(Shape shape, double phase) {
  Array out(f64(std::move(shape)));
  for (int64_t i = 0; i < out.count(); ++i) out.set(i, std::sin(phase + 0.7 * static_cast<double>(i)));
  return out;
}

TEST(Evaluate, MatmulWithTransposes) {
  const Array a = reals({2, 3}, {1, 2, 3, 4, 5, 6});
  const Array b = reals({3, 2}, {1, 0, 2, -1, 0, 3});
  const Array want = reals({2, 2}, {5, 7, 14, 13});
  EXPECT_TRUE(same_bits(run("matmul", {a, b}), want));
  const Array at = run("transpose", {a}, {{"permutation", Shape{1, 0}}});
  const Array bt = run("transpose", {b}, {{"permutation", Shape{1, 0}}});
  EXPECT_TRUE(same_bits(run("matmul", {at, bt}, {{"transpose_a", true}, {"transpose_b", true}}), want));
}

TEST(Evaluate, EmptyTensorsReduceToTheNeutralElement) {
  const Attrs attrs = {{"dims", Shape{0}}};
  const Array empty(f64({0, 2}));
  EXPECT_EQ(run("sum", {empty}, attrs).reals, (std::vector<double>{0, 0}));
  EXPECT_EQ(run("prod", {empty}, attrs).reals, (std::vector<double>{1, 1}));
  EXPECT_EQ(run("max", {empty}, attrs).reals, (std::vector<double>{-HUGE_VAL, -HUGE_VAL}));
  EXPECT_EQ(run("matmul", {Array(f64({2, 0})), Array(f64({0, 1}))}).reals, (std::vector<double>{0, 0}));
}

TEST(Evaluate, NanWinsExtremes) {
  const Array x = reals({4}, {1, NAN, 7, 2});
  EXPECT_TRUE(std::isnan(run("max", {x}, {{"dims", Shape{0}}}).reals[0]));
  EXPECT_EQ(run("argmax", {x}, {{"dim", int64_t{0}}}).integers[0], 1);
  const std::vector<Array> sorted = run_all("sort", {x}, {{"dim", int64_t{0}}});
  EXPECT_EQ(sorted[1].integers, (std::vector<int64_t>{0, 3, 2, 1}));
  EXPECT_EQ(run_all("sort", {x}, {{"dim", int64_t{0}}, {"descending", true}})[1].integers,
            (std::vector<int64_t>{1, 2, 3, 0}));
}

TEST(Evaluate, ArgmaxTakesTheFirst) {
  EXPECT_EQ(run("argmax", {reals({2, 3}, {1, 3, 3, 5, 5, 0})}, {{"dim", int64_t{1}}}).integers,
            (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(run("argmin", {reals({3}, {1, 0, 0})}, {{"dim", int64_t{0}}}).integers, (std::vector<int64_t>{1}));
}

TEST(Evaluate, IndexOps) {
  const Array x = reals({3, 2}, {1, 2, 3, 4, 5, 6});
  const Array index = integers({2}, {2, 0});
  const Attrs rows = {{"dim", int64_t{0}}};
  EXPECT_EQ(run("take", {x, index}, rows).reals, (std::vector<double>{5, 6, 1, 2}));
  const Array values = reals({2, 2}, {10, 20, 30, 40});
  EXPECT_EQ(run("put", {x, index, values}, rows).reals, (std::vector<double>{30, 40, 3, 4, 10, 20}));
  const Array twice = integers({2}, {1, 1});
  EXPECT_EQ(run("put_add", {x, twice, values}, rows).reals, (std::vector<double>{1, 2, 43, 64, 5, 6}));
  EXPECT_EQ(run("gather", {x, integers({1, 2}, {2, 1})}, rows).reals, (std::vector<double>{5, 4}));
  EXPECT_EQ(run("scatter_add", {x, integers({2, 1}, {0, 0}), reals({2, 1}, {10, 20})}, rows).reals,
            (std::vector<double>{31, 2, 3, 4, 5, 6}));
  EXPECT_USER_ERROR(run("take", {x, integers({1}, {3})}, rows), "an index is 3; it selects among 3");
}

TEST(Evaluate, Views) {
  const Array x = reals({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(run("slice", {x}, {{"starts", Shape{0, 0}}, {"shape", Shape{2, 2}}, {"steps", Shape{1, 2}}}).reals,
            (std::vector<double>{1, 3, 4, 6}));
  EXPECT_EQ(run("pad", {x}, {{"low", Shape{0, 1}}, {"high", Shape{1, 0}}}).reals,
            (std::vector<double>{0, 1, 2, 3, 0, 4, 5, 6, 0, 0, 0, 0}));
  EXPECT_EQ(run("reverse", {x}, {{"dims", Shape{1}}}).reals, (std::vector<double>{3, 2, 1, 6, 5, 4}));
  EXPECT_EQ(run("as_strided", {x}, {{"shape", Shape{2, 2}}, {"strides", Shape{1, 1}}, {"offset", int64_t{3}}}).reals,
            (std::vector<double>{4, 5, 5, 6}));
  const Array halves = run("bitcast", {reals({1}, {1.0}, DType::kF32)}, {{"dtype", DType::kBF16}});
  EXPECT_EQ(halves.reals, (std::vector<double>{0.0, 1.0})) << "0x3F800000, low half first";
}

TEST(Evaluate, CastsRoundAndTruncate) {
  EXPECT_EQ(run("cast", {reals({3}, {-1.7, 2.9, 0.2})}, {{"dtype", DType::kI32}}).integers,
            (std::vector<int64_t>{-1, 2, 0}));
  EXPECT_EQ(run("cast", {reals({3}, {0.2, 0.0, NAN})}, {{"dtype", DType::kBool}}).integers,
            (std::vector<int64_t>{1, 0, 1}));
  EXPECT_EQ(run("cast", {reals({1}, {0.1})}, {{"dtype", DType::kBF16}}).reals[0], 0.10009765625);
}

TEST(Evaluate, SoftmaxIsStableAndSumsToOne) {
  const Array y = run("softmax", {reals({1, 3}, {1000, 1001, -HUGE_VAL})}, {{"dim", int64_t{1}}});
  EXPECT_NEAR(y.reals[0], 1 / (1 + std::exp(1.0)), 1e-15);
  EXPECT_NEAR(y.reals[1], 1 / (1 + std::exp(-1.0)), 1e-15);
  EXPECT_EQ(y.reals[2], 0.0);
}

// Attention by its definition, one number after the other.
Array plain_attention(const Array& q, const Array& k, const Array& v, double scale, bool causal) {
  const Shape s = q.type.shape;
  const int64_t keys = k.type.shape[2];
  const int64_t group = s[1] / k.type.shape[1];
  const int64_t width = v.type.shape[3];
  Array out(f64({s[0], s[1], s[2], width}));
  for (int64_t b = 0; b < s[0]; ++b)
    for (int64_t h = 0; h < s[1]; ++h)
      for (int64_t i = 0; i < s[2]; ++i) {
        const int64_t kh = b * k.type.shape[1] + h / group;
        std::vector<double> weights;
        double sum = 0;
        for (int64_t j = 0; j < (causal ? i + 1 : keys); ++j) {
          double score = 0;
          for (int64_t d = 0; d < s[3]; ++d)
            score += q.real(((b * s[1] + h) * s[2] + i) * s[3] + d) * k.real((kh * keys + j) * s[3] + d);
          weights.push_back(std::exp(scale * score));
          sum += weights.back();
        }
        for (int64_t d = 0; d < width; ++d) {
          double value = 0;
          for (size_t j = 0; j < weights.size(); ++j)
            value += weights[j] / sum * v.real((kh * keys + static_cast<int64_t>(j)) * width + d);
          out.set(((b * s[1] + h) * s[2] + i) * width + d, value);
        }
      }
  return out;
}

TEST(Evaluate, AttentionAndItsGradientsWithGroupedHeads) {
  const Attrs attrs = {{"scale", 0.5}, {"causal", true}};
  const std::vector<Array> in = {pattern({1, 4, 3, 2}, 0.1), pattern({1, 2, 3, 2}, 0.2), pattern({1, 2, 3, 4}, 0.3)};
  const std::vector<Array> out = run_all("attention", in, attrs);
  EXPECT_LE(largest_error(out[0], plain_attention(in[0], in[1], in[2], 0.5, true)), 1e-14);

  const Array gradient = pattern({1, 4, 3, 4}, 0.9);
  const std::vector<Array> gradients =
      run_all("attention_backward", {gradient, in[0], in[1], in[2], out[0], out[1]}, attrs);
  for (size_t operand = 0; operand < 3; ++operand)
    for (int64_t i = 0; i < in[operand].count(); ++i) {
      double slope = 0;
      for (double h : {1e-5, -1e-5}) {
        std::vector<Array> moved = in;
        moved[operand].set(i, in[operand].real(i) + h);
        const Array y = plain_attention(moved[0], moved[1], moved[2], 0.5, true);
        for (int64_t j = 0; j < y.count(); ++j) slope += y.real(j) * gradient.real(j) / (2 * h);
      }
      EXPECT_NEAR(gradients[operand].real(i), slope, 1e-9) << "operand " << operand << " element " << i;
    }
}

TEST(Evaluate, LayerNormAndItsGradients) {
  const std::vector<Array> in = {pattern({2, 4}, 0.1), pattern({4}, 0.5), pattern({4}, 0.8)};
  const Attrs attrs = {{"dims", int64_t{1}}, {"eps", 1e-5}};
  const std::vector<Array> out = run_all("layer_norm", in, attrs);
  for (int64_t row = 0; row < 2; ++row) {
    double mean = 0;
    double variance = 0;
    for (int64_t i = 0; i < 4; ++i) mean += in[0].real(row * 4 + i) / 4;
    for (int64_t i = 0; i < 4; ++i) variance += std::pow(in[0].real(row * 4 + i) - mean, 2) / 4;
    for (int64_t i = 0; i < 4; ++i)
      EXPECT_NEAR(out[0].real(row * 4 + i),
                  (in[0].real(row * 4 + i) - mean) / std::sqrt(variance + 1e-5) * in[1].real(i) + in[2].real(i), 1e-14);
  }
  const Array gradient = pattern({2, 4}, 2.0);
  const std::vector<Array> gradients =
      run_all("layer_norm_backward", {gradient, in[0], out[1], out[2], in[1]}, {{"dims", int64_t{1}}});
  for (size_t operand = 0; operand < 3; ++operand)
    for (int64_t i = 0; i < in[operand].count(); ++i) {
      double slope = 0;
      for (double h : {1e-5, -1e-5}) {
        std::vector<Array> moved = in;
        moved[operand].set(i, in[operand].real(i) + h);
        const Array y = run_all("layer_norm", moved, attrs)[0];
        for (int64_t j = 0; j < y.count(); ++j) slope += y.real(j) * gradient.real(j) / (2 * h);
      }
      EXPECT_NEAR(gradients[operand].real(i), slope, 1e-9) << "operand " << operand << " element " << i;
    }
}

TEST(Evaluate, LossIgnoresAndItsGradientFollows) {
  const Array logp = run("log_softmax", {pattern({3, 4}, 0.3)}, {{"dim", int64_t{1}}});
  const Array target = integers({3}, {2, -100, 0});
  const std::vector<Array> rows = run_all("nll_loss", {logp, target});
  EXPECT_EQ(rows[0].reals, (std::vector<double>{-logp.real(2), 0, -logp.real(8)}));
  EXPECT_EQ(rows[1].integers, (std::vector<int64_t>{1, 0, 1}));
  const Array gradient = run("nll_loss_backward", {reals({3}, {1, 1, 0.5}), target}, {{"classes", int64_t{4}}});
  EXPECT_EQ(gradient.reals, (std::vector<double>{0, 0, -1, 0, 0, 0, 0, 0, -0.5, 0, 0, 0}));
}

TEST(Evaluate, AdamwIsItsFormula) {
  const double p = 0.5, g = -0.2, m = 0.03, v = 0.002, lr = 1e-2, beta1 = 0.9, beta2 = 0.99, decay = 0.1, eps = 1e-8;
  const auto one = [](double value) { return reals({}, {value}); };
  const std::vector<Array> out =
      run_all("adamw_update", {reals({1}, {p}), reals({1}, {g}), reals({1}, {m}), reals({1}, {v}), one(3), one(lr),
                               one(beta1), one(beta2), one(decay), one(eps)});
  const double m1 = beta1 * m + (1 - beta1) * g;
  const double v1 = beta2 * v + (1 - beta2) * g * g;
  const double root = std::sqrt(v1) / std::sqrt(1 - std::pow(beta2, 3)) + eps;
  EXPECT_NEAR(out[0].reals[0], p - lr * decay * p - lr / (1 - std::pow(beta1, 3)) * m1 / root, 1e-15);
  EXPECT_NEAR(out[1].reals[0], m1, 1e-16);
  EXPECT_NEAR(out[2].reals[0], v1, 1e-16);
}

TEST(Evaluate, SgdIsItsFormula) {
  const auto one = [](double value) { return reals({}, {value}); };
  const std::vector<Array> out = run_all(
      "sgd_update", {reals({1}, {0.5}), reals({1}, {-0.2}), reals({1}, {0.1}), one(0.01), one(0.9), one(0.5), one(0.1)},
      {{"nesterov", true}});
  const double g = -0.2 + 0.1 * 0.5;
  const double velocity = 0.9 * 0.1 + 0.5 * g;
  EXPECT_NEAR(out[1].reals[0], velocity, 1e-16);
  EXPECT_NEAR(out[0].reals[0], 0.5 - 0.01 * (g + 0.9 * velocity), 1e-16);
}

// Random123's known answer: counter and key 0 give 6627e8d5 first.
TEST(Evaluate, RandomNumbersArePhilox) {
  const Attrs attrs = {{"shape", Shape{4096}}, {"dtype", DType::kF64}, {"stream", int64_t{0}}};
  const Array uniform = run("random_uniform", {integers({2}, {0, 0})}, attrs);
  EXPECT_EQ(uniform.reals[0], static_cast<double>(0x6627e8d5U >> 8) * 0x1p-24);
  double mean = 0;
  for (double x : uniform.reals) mean += x / 4096;
  EXPECT_NEAR(mean, 0.5, 0.02);
  const Array normal = run("random_normal", {integers({2}, {7, 1})}, attrs);
  double square = 0;
  for (double x : normal.reals) square += x * x / 4096;
  EXPECT_NEAR(square, 1.0, 0.08);
  EXPECT_FALSE(same_bits(uniform, run("random_uniform", {integers({2}, {0, 1})}, attrs)));
  EXPECT_FALSE(same_bits(uniform, run("random_uniform", {integers({2}, {1, 0})}, attrs)));
}

}  // namespace
}  // namespace stepc
