// What holds for every optimizer: decay by rule, low precision, skipped steps, state that comes back, no host reads.
#include "optim/optimizer.h"

#include <functional>
#include <map>

#include <gtest/gtest.h>

#include "base/check.h"
#include "optim/adamw.h"
#include "optim/agd.h"
#include "optim/lion.h"
#include "optim/sgd.h"
#include "tests/host_reads.h"
#include "tests/optim/parameters.h"

namespace stepc::optim {
namespace {

using Make = std::function<std::unique_ptr<Optimizer>(NamedTensors, double lr, double decay, UpdateRules)>;

const std::map<std::string, Make> kOptimizers = {
    {"adamw",
     [](NamedTensors p, double lr, double decay, UpdateRules rules) {
       return std::make_unique<AdamW>(std::move(p), AdamWOptions{.lr = lr, .weight_decay = decay, .rules = rules});
     }},
    {"agd",
     [](NamedTensors p, double lr, double decay, UpdateRules rules) {
       return std::make_unique<Agd>(std::move(p), AgdOptions{.lr = lr, .weight_decay = decay, .rules = rules});
     }},
    {"lion",
     [](NamedTensors p, double lr, double decay, UpdateRules rules) {
       return std::make_unique<Lion>(std::move(p), LionOptions{.lr = lr, .weight_decay = decay, .rules = rules});
     }},
    {"sgd",
     [](NamedTensors p, double lr, double decay, UpdateRules rules) {
       return std::make_unique<Sgd>(
           std::move(p),
           SgdOptions{.lr = lr, .momentum = 0.9, .nesterov = true, .weight_decay = decay, .rules = rules});
     }},
};

class EveryOptimizer : public testing::TestWithParam<std::string> {
 protected:
  static std::unique_ptr<Optimizer> make(NamedTensors parameters, double lr = 1e-2, double decay = 0.0,
                                         UpdateRules rules = {}) {
    return kOptimizers.at(GetParam())(std::move(parameters), lr, decay, rules);
  }
};

NamedTensors copy_of(const NamedTensors& state) {
  NamedTensors copy;
  for (const auto& [name, tensor] : state) copy.emplace_back(name, tensor.clone());
  return copy;
}

TEST_P(EveryOptimizer, DecaysByRule) {
  for (const bool decay_embeddings : {true, false}) {
    NamedTensors parameters;
    for (const char* name : {"model.embed_tokens.weight", "transformer.wpe.weight", "model.layers.0.q_proj.weight"})
      parameters.emplace_back(name, at::ones({3, 3}).requires_grad_(true));
    parameters.emplace_back("model.norm.weight", at::ones({3}).requires_grad_(true));
    parameters.emplace_back("model.layers.0.q_proj.bias", at::ones({3}).requires_grad_(true));
    const auto optimizer = make(parameters, 0.1, 0.5, {.decay_embeddings = decay_embeddings});
    for (const auto& [name, p] : parameters) p.mutable_grad() = at::zeros_like(p);
    optimizer->step();
    for (const auto& [name, p] : parameters) {
      const bool matrix = p.dim() == 2 && (decay_embeddings || name.find("q_proj") != std::string::npos);
      EXPECT_EQ(p.detach().flatten()[0].item<double>() < 1.0, matrix) << name;
    }
  }
}

TEST_P(EveryOptimizer, MasterWeightsAreTheFloat32RunRounded) {
  const at::Tensor wide = parameter({8, 8}, at::kBFloat16).detach().to(at::kFloat).requires_grad_(true);
  const at::Tensor low = wide.detach().to(at::kBFloat16).requires_grad_(true);
  const auto of_wide = make({{"w", wide}}, 1e-3, 0.1);
  const auto of_low = make({{"w", low}}, 1e-3, 0.1);
  for (int t = 0; t < 20; ++t) {
    set_grad(low, t);
    wide.mutable_grad() = low.grad().to(at::kFloat);
    of_wide->step();
    of_low->step();
    EXPECT_TRUE(at::equal(low, wide.to(at::kBFloat16))) << t;
  }
  for (const auto& [name, tensor] : of_low->named_state())
    EXPECT_TRUE(!name.starts_with("w.") || tensor.scalar_type() == at::kFloat) << name;
}

TEST_P(EveryOptimizer, StochasticRoundingFollowsOnAverage) {
  at::manual_seed(3);
  const at::Tensor wide = at::ones({64, 64}).requires_grad_(true);
  const at::Tensor low = at::ones({64, 64}, at::kBFloat16).requires_grad_(true);
  const auto of_wide = make({{"w", wide}}, 1e-5);
  const auto of_low = make({{"w", low}}, 1e-5, 0.0, {.low_precision = LowPrecision::kStochasticRounding});
  for (int t = 0; t < 100; ++t) {
    wide.mutable_grad() = at::ones_like(wide);
    low.mutable_grad() = at::ones_like(low);
    of_wide->step();
    of_low->step();
  }
  const double moved = 1.0 - wide.mean().item<double>();
  EXPECT_GT(moved, 5e-4);  // each step is a small part of bfloat16's last place, which is 4e-3 below one
  EXPECT_NEAR((1.0 - low.to(at::kFloat).mean().item<double>()) / moved, 1.0, 0.1);
  for (const auto& [name, tensor] : of_low->named_state()) EXPECT_FALSE(name.ends_with(".master"));
}

TEST_P(EveryOptimizer, RoundedKeepsEverythingInTheParametersDtype) {
  const at::Tensor low = parameter({4, 4}, at::kBFloat16);
  const auto optimizer = make({{"w", low}}, 1e-1, 0.1, {.low_precision = LowPrecision::kRounded});
  set_grad(low, 1);
  optimizer->step();
  for (const auto& [name, tensor] : optimizer->named_state())
    EXPECT_TRUE(!name.starts_with("w.") || tensor.scalar_type() == at::kBFloat16) << name;
}

TEST_P(EveryOptimizer, ASkippedStepChangesNothing) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor p = parameter({5, 3}, dtype);
    const auto optimizer = make({{"w", p}}, 1e-2, 0.1);
    const at::Tensor twin = p.detach().clone().requires_grad_(true);
    const auto without = make({{"w", twin}}, 1e-2, 0.1);
    for (int t = 0; t < 6; ++t) {
      const bool skip = t % 3 == 1;
      set_grad(p, t);
      twin.mutable_grad() = p.grad().clone();
      if (skip) p.mutable_grad().fill_(std::numeric_limits<double>::quiet_NaN());
      optimizer->step(at::full({}, skip ? 1.0 : 0.0));
      if (!skip) without->step();
      EXPECT_TRUE(at::equal(p, twin)) << t;
    }
    const NamedTensors one = optimizer->named_state();
    const NamedTensors other = without->named_state();
    for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i].second, other[i].second)) << one[i].first;
  }
}

TEST_P(EveryOptimizer, StateRoundTripContinuesBitEqual) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor first = parameter({6, 6}, dtype);
    const auto original = make({{"w", first}});
    const auto run = [](const at::Tensor& p, Optimizer& optimizer, int from, int to) {
      for (int t = from; t < to; ++t) {
        set_grad(p, t);
        optimizer.step();
      }
    };
    run(first, *original, 0, 4);
    const at::Tensor second = first.detach().clone().requires_grad_(true);
    const auto resumed = make({{"w", second}}, 0.5);
    resumed->load_state(copy_of(original->named_state()));
    run(first, *original, 4, 8);
    run(second, *resumed, 4, 8);
    EXPECT_TRUE(at::equal(first, second));
  }
}

TEST_P(EveryOptimizer, AStepReadsNothingBackToTheHost) {
  for (const LowPrecision low : {LowPrecision::kMasterWeights, LowPrecision::kStochasticRounding}) {
    const at::Tensor p = parameter({6, 6}, at::kBFloat16);
    const auto optimizer = make({{"w", p}}, 1e-2, 0.1, {.low_precision = low});
    set_grad(p, 1);
    const at::Tensor skip = at::zeros({});
    const test::HostReads reads;
    optimizer->step();
    optimizer->step(skip);
    EXPECT_EQ(test::HostReads::found(), std::set<std::string>{});
  }
}

TEST_P(EveryOptimizer, StateKeepsItsStorage) {
  const at::Tensor p = parameter({6, 6}, at::kBFloat16);
  const auto optimizer = make({{"w", p}});
  const NamedTensors before = optimizer->named_state();
  set_grad(p, 1);
  optimizer->step();
  optimizer->set_lr(0.5);
  const NamedTensors after = optimizer->named_state();
  for (size_t i = 0; i < before.size(); ++i)
    EXPECT_EQ(before[i].second.data_ptr(), after[i].second.data_ptr()) << before[i].first;
}

TEST(Optimizer, StochasticRoundingIsForBfloat16) {
  EXPECT_THROW(
      Sgd({{"w", parameter({2, 2}, at::kHalf)}}, {.rules = {.low_precision = LowPrecision::kStochasticRounding}}),
      UserError);
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& [name, make] : kOptimizers) all.push_back(name);
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, EveryOptimizer, testing::ValuesIn(names()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace stepc::optim
