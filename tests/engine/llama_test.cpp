// Llama, the model that the trainer trains: bit-equal to eager in every precision, plain, checkpoint-free, with dropout
// and with several micro-batches in one step.
#include <gtest/gtest.h>

#include <ATen/autocast_mode.h>

#include "models/decoder.h"
#include "tests/engine/twins.h"

namespace stepc {
namespace {

using models::Decoder;
using models::DecoderConfig;
using Twins = test::TwinsOf<Decoder>;

DecoderConfig tiny() {
  DecoderConfig config;
  config.vocab_size = 128;
  config.hidden_size = 64;
  config.intermediate_size = 160;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  return config;
}

Decoder make() {
  Decoder model(tiny());
  model->initialize(3);
  return model;
}

// Changing batches, (batch, seq + 1).
at::Tensor tokens(int i) {
  torch::manual_seed(100 + i);
  return torch::randint(0, 128, {2, 33}, at::kLong);
}

at::Tensor next_token_loss(Decoder& model, const at::Tensor& batch) {
  return model->loss(batch.slice(1, 0, 32), batch.slice(1, 1, 33));
}

void expect_planned(const Twins& twins) {
  EXPECT_EQ(twins.stats().plans, 1U) << twins.report();
  EXPECT_GE(twins.stats().replays, 6U) << twins.report();
  EXPECT_EQ(twins.stats().unplanned_allocations, 0U) << twins.report();
  EXPECT_LE(static_cast<double>(twins.stats().measured_peak_bytes),
            1.03 * static_cast<double>(twins.stats().eager_peak_bytes))
      << twins.report();
  EXPECT_LE(static_cast<double>(twins.stats().arena_bytes),
            1.03 * static_cast<double>(twins.stats().live_lower_bound_bytes))
      << twins.report();
  EXPECT_EQ(twins.stats().planned_peak_bytes, twins.stats().measured_peak_bytes) << twins.report();
}

class LlamaIn : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(LlamaIn, PlainIsBitEqualToEager) {
  Twins twins(make, next_token_loss, GetParam());
  twins.run(10, tokens);
  expect_planned(twins);
}

TEST_P(LlamaIn, AccumulatedIsBitEqualToEager) {
  Twins twins(
      make,
      [](Decoder& model, const at::Tensor& batch) {
        // One micro-batch a row; the last one's loss is left to the caller's backward().
        const at::Tensor count = at::full({}, 64.0, at::kFloat);
        const auto part = [&](int64_t row) {
          const at::Tensor ids = batch.slice(0, row, row + 1);
          return model->loss(ids.slice(1, 0, 32), ids.slice(1, 1, 33), count);
        };
        at::Tensor first = part(0);
        first.backward();
        at::Tensor second = part(1);
        return second + first.detach();
      },
      GetParam());
  twins.run(10, tokens);
  expect_planned(twins);
}

INSTANTIATE_TEST_SUITE_P(Precision, LlamaIn, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(Llama, AutocastIsBitEqualToEager) {
  Twins twins(make, [](Decoder& model, const at::Tensor& batch) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::Tensor loss = next_token_loss(model, batch);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    return loss;
  });
  twins.run(10, tokens);
  expect_planned(twins);
}

TEST(Llama, DropoutDrawsTheSameNumbersAsEager) {
  Twins twins(make, [](Decoder& model, const at::Tensor& batch) {
    const at::Tensor logits = model->forward(batch.slice(1, 0, 32));
    return torch::dropout(logits.to(at::kFloat), 0.2, true).pow(2).mean();
  });
  twins.run(10, tokens);
  expect_planned(twins);
}

TEST(Llama, TraceNamesPhasesAndModules) {
  Twins twins(make, next_token_loss);
  twins.run(4, tokens);
  const Trace trace = parse_trace(twins.graph_text());
  int phases[3] = {0, 0, 0};
  bool forward_layer = false;
  bool backward_layer = false;
  int unnamed = 0;
  for (const Call& call : trace.calls) {
    ++phases[static_cast<int>(call.phase)];
    const bool in_layer = call.module.find("layers.1.self_attn") != std::string::npos;
    forward_layer = forward_layer || (in_layer && call.phase == Phase::kForward);
    backward_layer = backward_layer || (in_layer && call.phase == Phase::kBackward);
    if (call.phase == Phase::kBackward && call.module.empty()) ++unnamed;
  }
  for (int count : phases) EXPECT_GT(count, 0);
  EXPECT_TRUE(forward_layer);
  EXPECT_TRUE(backward_layer);
  EXPECT_LT(unnamed, phases[1] / 4) << "most backward calls take their forward call's path";
  EXPECT_EQ(to_text(trace), twins.graph_text());
}

}  // namespace
}  // namespace stepc
