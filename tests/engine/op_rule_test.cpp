// An operator of the program's own is part of the plan where a rule says what it does, and the rule is held to that.
#include "capture/op_rule.h"

#include <algorithm>

#include <gtest/gtest.h>

#include <torch/library.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "engine/verify/rule_check.h"
#include "engine/virtual_door.h"
#include "tests/engine/log_lines.h"
#include "tests/engine/twins.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

using test::LogLines;

// Rows of x, each scaled by its largest element.
at::Tensor rule_scaled(const at::Tensor& x, const at::Tensor& by) { return x * x.amax(-1, /*keepdim=*/true) * by; }
at::Tensor& rule_changes(at::Tensor& x) { return x.add_(1); }

TORCH_LIBRARY(stepc_rule_test, m) {
  m.def("scaled(Tensor x, Tensor by) -> Tensor", torch::dispatch(c10::DispatchKey::CPU, rule_scaled));
  m.def("changes(Tensor(a!) x) -> Tensor(a!)", torch::dispatch(c10::DispatchKey::CPU, rule_changes));
}

at::Tensor call_scaled(const at::Tensor& x, const at::Tensor& by) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("stepc_rule_test::scaled", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
  return op.call(x, by);
}

OpRuleParts right_parts() {
  return {.shapes = [](const OpUse& use) { return std::vector<Shape>{use.operands.at(0).shape}; },
          .flops = [](const OpUse& use) { return 3.0 * static_cast<double>(use.count(0)); },
          .bytes = {},
          .sharding = "r _, _ -> r _"};
}

torch::nn::Sequential make_rule_layer() { return torch::nn::Sequential(torch::nn::Linear(8, 4)); }
at::Tensor rule_batch(int i) {
  torch::manual_seed(i);
  return torch::randn({6, 8});
}
test::Twins rule_twins(const Config& config) {
  return test::Twins(
      make_rule_layer,
      [](torch::nn::Sequential& model, const at::Tensor& x) {
        const at::Tensor y = model->forward(x);
        return (y * call_scaled(x.narrow(1, 0, 4).clone(), x.select(0, 0).narrow(0, 4, 4).clone())).pow(2).mean();
      },
      at::kFloat, config);
}

TEST(OpRule, TheCallIsInThePlan) {
  const LogLines lines;
  Config config{.mode = Mode::kExact};
  config.op_rules = {op_rule("stepc_rule_test::scaled", right_parts())};
  test::Twins trained = rule_twins(config);
  trained.run(8, rule_batch);
  EXPECT_GE(trained.stats().replays, 4U);
  EXPECT_EQ(lines.count("runs beside"), 0) << lines.text();

  const LogLines without;
  rule_twins({.mode = Mode::kExact}).run(8, rule_batch);
  EXPECT_EQ(without.count("stepc_rule_test::scaled is no operator of PyTorch's"), 1) << without.text();
}

TEST(OpRule, APlanOnPaperTakesIt) {
  torch::nn::Linear layer(8, 4);
  torch::optim::SGD optimizer(layer->parameters(), torch::optim::SGDOptions(0.1));
  const at::Tensor x = rule_batch(0);
  const auto step = [&](const at::Tensor& batch) {
    at::Tensor loss =
        (layer->forward(batch) * call_scaled(batch.narrow(1, 0, 4).clone(), batch[0].narrow(0, 4, 4).clone()))
            .pow(2)
            .mean();
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    return loss;
  };
  EXPECT_NE(plan(step, {layer}, {optimizer}, x).obstacle.find("is no operator of PyTorch's"), std::string::npos);
  Config config;
  config.op_rules = {op_rule("stepc_rule_test::scaled", right_parts())};
  const VirtualPlan planned = plan(step, {layer}, {optimizer}, config, x);
  EXPECT_EQ(planned.obstacle, "");
  const auto found = std::ranges::find(planned.trace.calls, "stepc_rule_test::scaled", &Call::op);
  ASSERT_NE(found, planned.trace.calls.end());
  ASSERT_TRUE(found->rule.has_value());
  EXPECT_EQ(found->rule->flops, 72);
  config.op_rules.push_back(config.op_rules[0]);
  EXPECT_USER_ERROR(plan(step, {layer}, {optimizer}, config, x), "Config::op_rules has two rules for");
}

TEST(OpRule, WhatItSaysIsHeldToTheCall) {
  const auto fails = [](OpRuleParts parts, const char* why) {
    Config config{.mode = Mode::kExact};
    config.op_rules = {op_rule("stepc_rule_test::scaled", std::move(parts))};
    EXPECT_USER_ERROR(rule_twins(config).run(8, rule_batch), why);
  };
  OpRuleParts wrong = right_parts();
  wrong.shapes = [](const OpUse&) { return std::vector<Shape>{{7}}; };
  fails(wrong,
        "op_rule stepc_rule_test::scaled: of f32[6, 4], f32[4] its shapes are [7], and the operator made [6, 4]; mend");
  wrong = right_parts();
  wrong.flops = [](const OpUse&) { return -1.0; };
  fails(wrong, "op_rule stepc_rule_test::scaled: flops gives -1; it is 0 or more");
  wrong = right_parts();
  wrong.sharding = "r c, c -> r c";
  fails(wrong, "says that 'c' (dimension 1 of operand 0) may be split, but two halves of result 0, put together, are");
}

TEST(OpRule, WhatIsNoRuleIsRefused) {
  EXPECT_USER_ERROR(op_rule("stepc_rule_test::nothing", {}), "there is no such operator");
  EXPECT_USER_ERROR(op_rule("aten::add.Tensor", {}), "stepc knows that operator");
  EXPECT_USER_ERROR(op_rule("stepc_rule_test::changes", {}), "it changes or gives back what it is given");
  EXPECT_USER_ERROR(op_rule("stepc_rule_test::scaled", {.sharding = "r c -> r c"}),
                    "sharding names the dimensions of 1 tensor arguments, the operator has 2");
  const OpRule rule = op_rule("stepc_rule_test::scaled", right_parts());
  Config twice;
  twice.op_rules = {rule, rule};
  EXPECT_USER_ERROR(check(twice), "Config::op_rules has two rules for stepc_rule_test::scaled");
}

}  // namespace
}  // namespace stepc
