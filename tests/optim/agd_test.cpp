#include "optim/agd.h"

#include <array>
#include <cmath>

#include <gtest/gtest.h>

#include "base/check.h"
#include "tests/optim/parameters.h"

namespace stepc::optim {
namespace {

struct Golden {
  const char* name;
  AgdOptions options;
  std::array<double, 5> values;
};

// One number from 1.0 under the gradients 0.5, -0.3, 0.2, 0.2, 1e-7, computed in float64 from the published formulas.
const std::vector<Golden> kGolden = {
    {"defaults", {}, {.999000000000, .998829190446, .998502308408, .998057183071, .997681506383}},
    {"decoupled decay",
     {.weight_decay = 0.1},
     {.998900000000, .998629300446, .998202555478, .997657609885, .997182167437}},
    {"decay in the gradient",
     {.weight_decay = 0.1, .decoupled_decay = false},
     {.999000000000, .998654833138, .998127453785, .997458200858, .996819092385}},
    {"clip", {.clip = 1.0}, {.999683772234, .999512962680, .999310952083, .999127183159, .998954684312}},
    {"large delta", {.delta = 10.0}, {.999950000000, .999942105263, .999929743640, .999915160912, .999904139201}},
    {"small beta2", {.beta2 = 0.5}, {.999000000000, .998824136885, .998406255427, .997686941655, .996917930757}},
    {"amsgrad",
     {.beta2 = 0.5, .amsgrad = true},
     {.999000000000, .998824136885, .998526706035, .998163518554, .997884481833}},
    {"win",
     {.weight_decay = 0.1, .win = true},
     {.331993022054, .109768245374, .035372615945, .010198868938, .001603601080}},
};

TEST(Agd, GoldenValues) {
  constexpr std::array kGrads = {0.5, -0.3, 0.2, 0.2, 1e-7};
  for (const Golden& golden : kGolden) {
    const at::Tensor p = at::ones({1, 1}, at::kDouble).requires_grad_(true);  // a matrix, which decays
    Agd agd({{"p", p}}, golden.options);
    for (size_t t = 0; t < kGrads.size(); ++t) {
      p.mutable_grad() = at::full({1, 1}, kGrads[t], at::kDouble);
      agd.step();
      EXPECT_NEAR(p.item<double>(), golden.values[t], 1e-12) << golden.name << ", step " << t + 1;
    }
  }
}

TEST(Agd, FixedDecayDoesNotDependOnTheLearningRate) {
  const at::Tensor p = at::ones({1, 1}, at::kDouble).requires_grad_(true);
  Agd agd({{"p", p}}, {.lr = 0.0, .weight_decay = 0.25, .fixed_decay = true});
  p.mutable_grad() = at::ones({1, 1}, at::kDouble);
  agd.step();
  EXPECT_EQ(p.item<double>(), 0.75);
}

TEST(Agd, TheFirstStepMovesByTheLearningRateAgainstTheSign) {
  const at::Tensor p = parameter({5, 4}, at::kDouble);
  const at::Tensor before = p.detach().clone();
  Agd agd({{"p", p}}, {.lr = 0.01, .delta = 1e-14});
  set_grad(p, 1);
  agd.step();
  EXPECT_TRUE(at::allclose(p, before - 0.01 * p.grad().sign(), 0, 1e-14));
}

TEST(Agd, ALargeDeltaIsMomentum) {
  const at::Tensor p = parameter({5, 4}, at::kDouble);
  at::Tensor expected = p.detach().clone();
  at::Tensor momentum = at::zeros_like(expected);
  Agd agd({{"p", p}}, {.lr = 0.1, .delta = 100.0});
  for (int t = 1; t <= 6; ++t) {
    set_grad(p, t);
    momentum = 0.9 * momentum + 0.1 * p.grad();
    expected = expected - 0.1 / 100.0 * momentum / (1 - std::pow(0.9, t));
    agd.step();
    EXPECT_TRUE(at::allclose(p, expected, 0, 1e-14)) << t;
  }
}

TEST(Agd, ScalingTheGradientsChangesNothing) {
  const auto trained = [](double factor) {
    const at::Tensor p = parameter({5, 4}, at::kDouble);
    const at::Tensor source = parameter({5, 4}, at::kDouble, 2);
    Agd agd({{"p", p}}, {.delta = 1e-20});
    for (int t = 0; t < 5; ++t) {
      set_grad(source, t);
      p.mutable_grad() = source.grad() * factor;
      agd.step();
    }
    return p.detach();
  };
  EXPECT_TRUE(at::allclose(trained(1.0), trained(1000.0), 0, 1e-13));
}

TEST(Agd, Float32FollowsFloat64) {
  const at::Tensor wide = parameter({6, 6}, at::kDouble);
  const at::Tensor narrow = wide.detach().to(at::kFloat).requires_grad_(true);
  Agd in_double({{"p", wide}}, {.weight_decay = 0.1});
  Agd in_float({{"p", narrow}}, {.weight_decay = 0.1});
  for (int t = 0; t < 10; ++t) {
    set_grad(wide, t);
    narrow.mutable_grad() = wide.grad().to(at::kFloat);
    in_double.step();
    in_float.step();
  }
  EXPECT_TRUE(at::allclose(narrow.to(at::kDouble), wide, 0, 1e-6));
}

TEST(Agd, RefusesBadOptions) {
  const at::Tensor p = parameter({2, 2}, at::kFloat);
  EXPECT_THROW(Agd({{"p", p}}, {.beta2 = 1.0}), UserError);
  EXPECT_THROW(Agd({{"p", p}}, {.delta = 0.0}), UserError);
  EXPECT_THROW(Agd({{"p", p}}, {.decoupled_decay = false, .fixed_decay = true}), UserError);
  EXPECT_THROW(Agd({{"p", p}}, {.clip = -1.0}), UserError);
}

}  // namespace
}  // namespace stepc::optim
