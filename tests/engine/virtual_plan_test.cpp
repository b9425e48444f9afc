// plan(): the trace of a step that was never executed is the trace of the recorded one, and the program is left as it
// was.
#include <optional>

#include <gtest/gtest.h>

#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include "engine/stepc.h"
#include "models/decoder.h"
#include "tests/engine/tiny_decoder.h"
#include "tests/engine/twins.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

using models::Decoder;
using models::DecoderConfig;
using test::expect_same_bits;

Decoder make_decoder() {
  Decoder model(test::tiny_decoder());
  model->initialize(3);
  return model;
}

at::Tensor tokens() {
  torch::manual_seed(100);
  return torch::randint(0, 128, {2, 33}, at::kLong);
}

template <class Optimizer>
at::Tensor train_decoder(Decoder& model, Optimizer& optimizer, const at::Tensor& batch) {
  at::Tensor loss = model->loss(batch.slice(1, 0, 32), batch.slice(1, 1, 33));
  loss.backward();
  optim::clip_grad_norm_(model->parameters(), 1.0);
  optimizer.step();
  optimizer.zero_grad();
  return loss;
}

Trace without_memory(Trace trace) {
  trace.allocations.clear();
  trace.scratch.clear();
  trace.ticks = 0;
  return trace;
}

optim::AdamW adamw_for(Decoder& model) {
  optim::NamedTensors named;
  for (const auto& item : model->named_parameters()) named.emplace_back(item.key(), item.value());
  return {named, optim::AdamWOptions()};
}

// The trace that an accelerated step keeps, of a program in the same state.
template <class Optimizer>
Trace recorded(Decoder& model, Optimizer& optimizer, const at::Tensor& batch) {
  auto step = accelerate([&](const at::Tensor& x) { return train_decoder(model, optimizer, x); }, {model}, {optimizer});
  for (int i = 0; i < 4 && step.stats().plans == 0; ++i) step(batch);
  EXPECT_EQ(step.stats().plans, 1U) << step.report();
  return parse_trace(step.graph_text());
}

template <class Optimizer>
VirtualPlan planned(Decoder& model, Optimizer& optimizer, const at::Tensor& batch) {
  return plan([&](const at::Tensor& x) { return train_decoder(model, optimizer, x); }, {model}, {optimizer}, batch);
}

void expect_same_trace(const Trace& planned, const Trace& recorded) {
  const Trace a = without_memory(planned);
  const Trace b = without_memory(recorded);
  EXPECT_EQ(first_difference(a, b), "");
  EXPECT_EQ(to_text(a), to_text(b));
  EXPECT_TRUE(planned.allocations.empty());
  verify(planned);
}

TEST(VirtualPlan, LlamaHasTheTraceOfTheRecordedStep) {
  const at::Tensor batch = tokens();
  Decoder a = make_decoder();
  Decoder b = make_decoder();
  optim::AdamW optimizer_a = adamw_for(a);
  optim::AdamW optimizer_b = adamw_for(b);
  const VirtualPlan plan = planned(b, optimizer_b, batch);
  EXPECT_EQ(plan.obstacle, "");
  expect_same_trace(plan.trace, recorded(a, optimizer_a, batch));
}

TEST(VirtualPlan, TorchAdamWHasTheTraceOfTheRecordedStep) {
  const at::Tensor batch = tokens();
  Decoder a = make_decoder();
  Decoder b = make_decoder();
  torch::optim::AdamW optimizer_a(a->parameters(), torch::optim::AdamWOptions(0.01));
  torch::optim::AdamW optimizer_b(b->parameters(), torch::optim::AdamWOptions(0.01));
  const VirtualPlan plan = planned(b, optimizer_b, batch);
  EXPECT_EQ(plan.obstacle, "");
  ASSERT_EQ(plan.trace.events.size(), 1U);
  expect_same_trace(plan.trace, recorded(a, optimizer_a, batch));
}

TEST(VirtualPlan, LeavesTheProgramAsItWas) {
  const at::Tensor batch = tokens();
  Decoder a = make_decoder();
  Decoder b = make_decoder();
  torch::optim::AdamW optimizer_a(a->parameters(), torch::optim::AdamWOptions(0.01));
  torch::optim::AdamW optimizer_b(b->parameters(), torch::optim::AdamWOptions(0.01));
  torch::manual_seed(5);
  for (int i = 0; i < 3; ++i) {  // without optimizer state first, then with state
    const at::Tensor generator = at::detail::getDefaultCPUGenerator().get_state();
    planned(b, optimizer_b, batch);
    expect_same_bits(generator, at::detail::getDefaultCPUGenerator().get_state(), "generator");
    if (i == 0) {
      EXPECT_TRUE(optimizer_b.state().empty());
    }
    for (const at::Tensor& parameter : b->parameters()) EXPECT_FALSE(parameter.grad().defined());
    expect_same_bits(train_decoder(a, optimizer_a, batch), train_decoder(b, optimizer_b, batch), "loss");
    for (size_t p = 0; p < a->parameters().size(); ++p)
      expect_same_bits(a->parameters()[p], b->parameters()[p], "parameter");
  }
}

TEST(VirtualPlan, GradientsThatExistStay) {
  const at::Tensor batch = tokens();
  Decoder model = make_decoder();
  optim::AdamW optimizer = adamw_for(model);
  model->loss(batch.slice(1, 0, 32), batch.slice(1, 1, 33)).backward();
  std::vector<at::Tensor> before;
  for (const at::Tensor& parameter : model->parameters()) before.push_back(parameter.grad().clone());
  planned(model, optimizer, batch);
  for (size_t p = 0; p < before.size(); ++p) expect_same_bits(before[p], model->parameters()[p].grad(), "gradient");
}

TEST(VirtualPlan, AModelLargerThanTheMachineIsPlanned) {
  DecoderConfig config = test::tiny_decoder();
  config.vocab_size = 128256;
  config.hidden_size = 16384;
  config.intermediate_size = 53248;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 128;
  config.num_key_value_heads = 8;
  config.head_dim = 128;
  std::optional<VirtualRegion> region(std::in_place);
  Decoder model(config);
  region.reset();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
  const VirtualPlan plan = planned(model, optimizer, tokens());
  EXPECT_EQ(plan.obstacle, "");
  EXPECT_GT(plan.parameters, uint64_t{16'000'000'000});
  EXPECT_EQ(plan.parameter_bytes, 4 * plan.parameters);
  EXPECT_GE(plan.optimizer_bytes, 2 * plan.parameter_bytes);
  EXPECT_GE(plan.step_bytes_lower_bound, plan.parameter_bytes) << "the gradients are the step's own";
  for (const at::Tensor& parameter : model->parameters())
    EXPECT_EQ(is_virtual(parameter), parameter.dim() == 2) << "matrices have no memory, vectors are small";
}

TEST(VirtualPlan, ReadingWhatWasNeverComputedNamesTheOperator) {
  Decoder model = make_decoder();
  optim::AdamW optimizer = adamw_for(model);
  const auto step = [&](const at::Tensor& batch) {
    at::Tensor loss = model->loss(batch.slice(1, 0, 32), batch.slice(1, 1, 33));
    if (loss.item<float>() > 1) loss.backward();
    return loss;
  };
  EXPECT_USER_ERROR(plan(step, {model}, {optimizer}, tokens()), "aten::_local_scalar_dense reads a value");
  EXPECT_FALSE(is_recording());
  EXPECT_GT(model->loss(tokens().slice(1, 0, 32), tokens().slice(1, 1, 33)).item<float>(), 0);
}

}  // namespace
}  // namespace stepc
