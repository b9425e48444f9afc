#include "optim/adamw.h"

#include <cmath>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/optim/adamw.h>

#include "base/check.h"
#include "tests/optim/parameters.h"

namespace stepc::optim {
namespace {

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(AdamW, FollowsTheFormulaInFloat64) {
  const AdamWOptions options{.lr = 3e-2, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.2};
  at::Tensor matrix = parameter({7, 5}, at::kDouble, 1);
  at::Tensor vector = parameter({9}, at::kDouble, 2);
  AdamW adamw({{"matrix", matrix}, {"vector", vector}}, options);

  struct Reference {
    at::Tensor value, m, v;
    double decay;
  };
  std::vector<Reference> references;
  for (const auto& [p, decay] : {std::pair{matrix, 0.2}, std::pair{vector, 0.0}})
    references.push_back({p.detach().clone(), at::zeros_like(p), at::zeros_like(p), decay});

  for (int t = 1; t <= 10; ++t) {
    const double lr = 3e-2 / t;
    adamw.set_lr(lr);
    set_grad(matrix, t);
    set_grad(vector, t);
    std::vector<at::Tensor> grads = {matrix.grad().clone(), vector.grad().clone()};
    adamw.step();
    for (size_t i = 0; i < 2; ++i) {
      Reference& r = references[i];
      r.m = 0.8 * r.m + 0.2 * grads[i];
      r.v = 0.95 * r.v + 0.05 * grads[i] * grads[i];
      const at::Tensor m_hat = r.m / (1 - std::pow(0.8, t));
      const at::Tensor v_hat = r.v / (1 - std::pow(0.95, t));
      r.value = r.value * (1 - lr * r.decay) - lr * m_hat / (v_hat.sqrt() + 1e-6);
      const at::Tensor& actual = i == 0 ? matrix : vector;
      EXPECT_LT((actual - r.value).abs().max().item<double>(), 1e-12) << "step " << t << ", parameter " << i;
    }
  }
}

TEST(AdamW, AgreesWithLibTorch) {
  at::Tensor mine = parameter({31, 17}, at::kFloat);
  at::Tensor theirs = mine.detach().clone().requires_grad_(true);
  AdamW adamw({{"w", mine}}, {.lr = 1e-2, .weight_decay = 0.1});
  torch::optim::AdamW reference({theirs}, torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  for (int t = 0; t < 20; ++t) {
    set_grad(mine, t);
    set_grad(theirs, t);
    adamw.step();
    reference.step();
  }
  EXPECT_TRUE(at::allclose(mine, theirs, 1e-5, 1e-6));
}

TEST(AdamW, NormsAndBiasesDoNotDecay) {
  at::Tensor matrix = parameter({4, 4}, at::kFloat, 1);
  at::Tensor norm = parameter({4}, at::kFloat, 2);
  AdamW adamw({{"matrix", matrix}, {"norm", norm}}, {.lr = 0.1, .weight_decay = 0.5});
  const at::Tensor matrix_before = matrix.detach().clone();
  const at::Tensor norm_before = norm.detach().clone();
  matrix.mutable_grad() = at::zeros_like(matrix);
  norm.mutable_grad() = at::zeros_like(norm);
  adamw.step();
  EXPECT_TRUE(at::allclose(matrix, matrix_before * 0.95));
  EXPECT_TRUE(at::equal(norm, norm_before));
}

TEST(AdamW, MasterWeightsKeepUpdatesThatBfloat16WouldLose) {
  const auto after_many_tiny_steps = [](LowPrecision low_precision) {
    at::Tensor p = at::ones({8, 8}, at::kBFloat16).requires_grad_(true);
    AdamW adamw({{"w", p}}, {.lr = 1e-4, .weight_decay = 0.0, .rules = {.low_precision = low_precision}});
    for (int t = 0; t < 500; ++t) {
      p.mutable_grad() = at::ones_like(p);
      adamw.step();
    }
    return p.detach()[0][0].item<double>();
  };
  EXPECT_NEAR(after_many_tiny_steps(LowPrecision::kMasterWeights), 0.95, 0.004);  // 500 steps of 1e-4, rounded once
  EXPECT_EQ(after_many_tiny_steps(LowPrecision::kRounded), 1.0);  // each step is below half a unit in the last place
}

TEST(AdamW, StateExistsFromTheStartAndKeepsItsStorage) {
  at::Tensor low = parameter({3, 2}, at::kBFloat16);
  at::Tensor full = parameter({3}, at::kFloat);
  AdamW adamw({{"low", low}, {"full", full}}, {});
  const NamedTensors before = adamw.named_state();
  std::vector<std::string> names;
  for (const auto& [name, tensor] : before) names.push_back(name);
  EXPECT_THAT(names, testing::ElementsAre("lr", "step", "low.exp_avg", "low.exp_avg_sq", "low.master", "full.exp_avg",
                                          "full.exp_avg_sq"));
  for (int t = 0; t < 3; ++t) {
    set_grad(low, t);
    set_grad(full, t);
    adamw.step();
    adamw.set_lr(1e-4 * (t + 1));
  }
  const NamedTensors after = adamw.named_state();
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(before[i].second.data_ptr(), after[i].second.data_ptr()) << before[i].first;
    EXPECT_FALSE(after[i].second.requires_grad()) << before[i].first;
  }
  EXPECT_EQ(after[2].second.scalar_type(), at::kFloat);
  EXPECT_EQ(after[1].second.item<double>(), 3.0);
  EXPECT_EQ(adamw.lr(), 1e-4 * 3);  // float64: not rounded
  EXPECT_TRUE(at::equal(low, after[4].second.to(at::kBFloat16)));
}

TEST(AdamW, StateRoundTripContinuesBitEqual) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    at::Tensor first = parameter({6, 6}, dtype);
    AdamW original({{"w", first}}, {.lr = 1e-2});
    const auto run = [](at::Tensor p, AdamW& adamw, int from, int to) {
      for (int t = from; t < to; ++t) {
        set_grad(p, t);
        adamw.step();
      }
    };
    run(first, original, 0, 4);
    at::Tensor second = first.detach().clone().requires_grad_(true);
    AdamW resumed({{"w", second}}, {.lr = 0.5});
    NamedTensors saved;
    for (const auto& [name, tensor] : original.named_state()) saved.emplace_back(name, tensor.clone());
    resumed.load_state(saved);
    EXPECT_EQ(resumed.lr(), 1e-2);
    run(first, original, 4, 8);
    run(second, resumed, 4, 8);
    EXPECT_TRUE(at::equal(first, second));
  }
}

TEST(AdamW, LoadStateIsStrictAndAllOrNothing) {
  AdamW adamw({{"w", parameter({2, 2}, at::kFloat)}}, {.lr = 0.25});
  NamedTensors state;
  for (const auto& [name, tensor] : adamw.named_state()) state.emplace_back(name, at::ones_like(tensor));
  NamedTensors missing(state.begin(), state.end() - 1);
  EXPECT_EQ(error_of([&] { adamw.load_state(missing); }), "the optimizer state lacks w.exp_avg_sq");
  NamedTensors unknown = state;
  unknown.emplace_back("v.exp_avg", at::ones({1}));
  EXPECT_EQ(error_of([&] { adamw.load_state(unknown); }),
            "the optimizer state holds v.exp_avg, which belongs to no parameter");
  NamedTensors misshapen = state;
  misshapen.back().second = at::ones({4}, at::kBFloat16);
  EXPECT_EQ(error_of([&] { adamw.load_state(misshapen); }),
            "w.exp_avg_sq is BFloat16 (4) in the optimizer state; expected Float (2, 2)");
  EXPECT_EQ(adamw.lr(), 0.25);
}

TEST(AdamW, SkipsParametersWithoutAGradientAndDropsGradients) {
  at::Tensor used = parameter({2, 2}, at::kFloat, 1);
  at::Tensor unused = parameter({2, 2}, at::kFloat, 2);
  AdamW adamw({{"used", used}, {"unused", unused}}, {});
  const at::Tensor before = unused.detach().clone();
  set_grad(used, 0);
  adamw.step();
  EXPECT_TRUE(at::equal(unused, before));
  adamw.zero_grad();
  EXPECT_FALSE(used.grad().defined());
}

TEST(AdamW, RefusesBadOptionsAndParameters) {
  const at::Tensor p = parameter({2}, at::kFloat);
  EXPECT_THAT(error_of([&] { AdamW({{"w", p}}, {.lr = -1.0}); }), testing::HasSubstr("the learning rate is -1"));
  EXPECT_THAT(error_of([&] { AdamW({{"w", p}}, {.beta1 = 1.0}); }), testing::HasSubstr("beta1 is 1"));
  EXPECT_THAT(error_of([&] { AdamW({{"w", p}}, {.eps = NAN}); }), testing::HasSubstr("eps is nan"));
  EXPECT_THAT(error_of([&] { AdamW({{"w", p}}, {.weight_decay = -0.1}); }), testing::HasSubstr("weight_decay is -0.1"));
  EXPECT_THAT(error_of([&] { AdamW({{"w", p}, {"w", p}}, {}); }), testing::HasSubstr("two parameters have the name w"));
  EXPECT_THAT(error_of([&] { AdamW({{"w", at::ones({2})}}, {}); }), testing::HasSubstr("w is not a parameter"));
  EXPECT_THAT(error_of([&] { AdamW({}, {}); }), testing::HasSubstr("no parameters"));
}

}  // namespace
}  // namespace stepc::optim
