// Config::capture "virtual": the first call runs the plan already, and what it does is what a plan of recorded steps
// does.
#include <algorithm>

#include <gtest/gtest.h>

#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include "engine/stepc.h"
#include "models/decoder.h"
#include "tests/engine/log_lines.h"
#include "tests/engine/tiny_decoder.h"
#include "tests/engine/twins.h"

namespace stepc {
namespace {

using models::Decoder;
using test::expect_same_bits;

Decoder make() {
  Decoder model(test::tiny_decoder());
  model->initialize(3);
  return model;
}

at::Tensor tokens(uint64_t seed) {
  torch::manual_seed(seed);
  return torch::randint(0, 128, {2, 33}, at::kLong);
}

optim::AdamW adamw_of(Decoder& model) {
  optim::NamedTensors named;
  for (const auto& item : model->named_parameters()) named.emplace_back(item.key(), item.value());
  return {named, optim::AdamWOptions()};
}

template <class Optimizer>
at::Tensor train(Decoder& model, Optimizer& optimizer, const at::Tensor& batch) {
  at::Tensor loss = model->loss(batch.slice(1, 0, 32), batch.slice(1, 1, 33));
  loss.backward();
  optim::clip_grad_norm_(model->parameters(), 1.0);
  optimizer.step();
  optimizer.zero_grad();
  return loss;
}

Config virtual_capture() {
  Config config;
  config.capture = Capture::kVirtual;
  return config;
}

void expect_same_parameters(Decoder& a, Decoder& b) {
  for (size_t p = 0; p < a->parameters().size(); ++p)
    expect_same_bits(a->parameters()[p], b->parameters()[p], "parameter");
}

TEST(VirtualCapture, TheFirstCallIsAReplay) {
  Decoder a = make(), b = make();
  optim::AdamW of_a = adamw_of(a), of_b = adamw_of(b);
  auto recorded = accelerate([&](const at::Tensor& x) { return train(a, of_a, x); }, {a}, {of_a});
  for (uint64_t i = 0; i < 4; ++i) recorded(tokens(i));
  ASSERT_GT(recorded.stats().replays, 0U);
  const at::NoGradGuard no_grad;
  for (size_t p = 0; p < a->parameters().size(); ++p) b->parameters()[p].copy_(a->parameters()[p]);
  of_b.load_state(of_a.named_state());
  const at::AutoGradMode grad(true);
  auto captured = accelerate([&](const at::Tensor& x) { return train(b, of_b, x); }, {b}, {of_b}, virtual_capture());
  for (uint64_t i = 4; i < 8; ++i) expect_same_bits(captured(tokens(i)), recorded(tokens(i)), "loss");
  expect_same_parameters(a, b);
  const Stats& stats = captured.stats();
  EXPECT_EQ(stats.recordings, 0U);
  EXPECT_EQ(stats.replays, 4U);
  EXPECT_EQ(stats.verifications, 1U);
  EXPECT_EQ(stats.plain_verifications, 1U) << stats.verified_with;
  // Planned for what eager takes at least, where the recording knows what it took.
  EXPECT_LE(stats.planned_peak_bytes, std::max(stats.eager_peak_bytes, recorded.stats().planned_peak_bytes));
  EXPECT_EQ(stats.unplanned_allocations, 0U);
  EXPECT_NE(captured.report().find("with the plain graph"), std::string::npos) << captured.report();
}

TEST(VirtualCapture, NothingChangesBeforeTheFirstCall) {
  Decoder a = make(), b = make();
  optim::AdamW of_a = adamw_of(a), of_b = adamw_of(b);
  auto step = accelerate([&](const at::Tensor& x) { return train(b, of_b, x); }, {b}, {of_b}, virtual_capture());
  const at::Tensor batch = tokens(1);
  torch::manual_seed(5);
  const at::Tensor generator = at::detail::getDefaultCPUGenerator().get_state();
  EXPECT_TRUE(step.prepare(batch));
  EXPECT_EQ(step.stats().plain_verifications, 1U) << step.stats().verified_with;
  EXPECT_EQ(step.stats().replays, 0U);
  expect_same_bits(generator, at::detail::getDefaultCPUGenerator().get_state(), "generator");
  expect_same_parameters(a, b);
  const auto before = of_a.named_state(), after = of_b.named_state();
  for (size_t i = 0; i < before.size(); ++i) expect_same_bits(before[i].second, after[i].second, before[i].first);
  for (const at::Tensor& parameter : b->parameters()) EXPECT_FALSE(parameter.grad().defined());
  step(batch);
  EXPECT_EQ(step.stats().verifications, 1U);
  EXPECT_EQ(step.stats().replays, 1U);
}

TEST(VirtualCapture, WithABudgetEagerIsComparedToo) {
  Decoder model = make();
  optim::AdamW optimizer = adamw_of(model);
  Config config = virtual_capture();
  config.memory_budget = parse_memory_budget("1GiB");
  auto step = accelerate([&](const at::Tensor& x) { return train(model, optimizer, x); }, {model}, {optimizer}, config);
  Decoder twin = make();
  EXPECT_TRUE(step.prepare(tokens(1)));
  EXPECT_EQ(step.stats().eager_calls, 1U) << step.stats().verified_with;
  expect_same_parameters(twin, model);
  step(tokens(1));
  EXPECT_EQ(step.stats().replays, 1U);
}

TEST(VirtualCapture, WhatReadsValuesIsRecordedWhileItRuns) {
  Decoder model = make();
  optim::AdamW optimizer = adamw_of(model);
  const test::LogLines lines;
  auto step = accelerate(
      [&](const at::Tensor& x) {
        at::Tensor loss = train(model, optimizer, x);
        if ((loss < 0).item<bool>()) loss = loss * 2;
        return loss;
      },
      {model}, {optimizer}, virtual_capture());
  step(tokens(1));
  EXPECT_EQ(step.stats().recordings, 1U);
  EXPECT_EQ(1, lines.count("the step is captured by running it: aten::_local_scalar_dense reads a value"));
  for (uint64_t i = 2; i < 6; ++i) step(tokens(i));
  EXPECT_GT(step.stats().replays, 0U);
}

TEST(VirtualCapture, StateThatTheFirstStepMakesIsThereForTheSecond) {
  Decoder a = make(), b = make();
  torch::optim::AdamW of_a(a->parameters(), torch::optim::AdamWOptions(0.01));
  torch::optim::AdamW of_b(b->parameters(), torch::optim::AdamWOptions(0.01));
  auto step = accelerate([&](const at::Tensor& x) { return train(b, of_b, x); }, {b}, {of_b}, virtual_capture());
  for (uint64_t i = 0; i < 5; ++i) {
    const at::Tensor expected = train(a, of_a, tokens(i));
    EXPECT_TRUE(step(tokens(i)).allclose(expected, 1e-4, 1e-4));
  }
  EXPECT_EQ(step.stats().recordings, 1U);
  EXPECT_EQ(step.stats().replays, 4U);
}

TEST(VirtualCapture, ABadIndexIsAnErrorOfTheStepItself) {
  Decoder model = make();
  optim::AdamW optimizer = adamw_of(model);
  auto step = accelerate([&](const at::Tensor& x) { return train(model, optimizer, x); }, {model}, {optimizer},
                         virtual_capture());
  step(tokens(1));
  at::Tensor bad = tokens(2);
  bad[0][5] = 4000;
  EXPECT_ANY_THROW(step(bad));
  step(tokens(3));
}

}  // namespace
}  // namespace stepc
