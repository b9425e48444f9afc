// Llama, the model that the trainer trains: bit-equal to eager in every precision, plain, with dropout, with several
// micro-batches in one step, and recomputed in its backward pass.
#include <array>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "models/decoder.h"
#include "tests/engine/recompute.h"
#include "tests/engine/tiny_decoder.h"
#include "tests/engine/twins.h"

namespace stepc {
namespace {

using models::Decoder;
using models::DecoderConfig;
using DecoderTwins = test::TwinsOf<Decoder>;

Decoder make_decoder(double attention_dropout = 0.0) {
  DecoderConfig config = test::tiny_decoder();
  config.attention_dropout = attention_dropout;
  Decoder model(config);
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

void expect_planned(const DecoderTwins& twins) {
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

enum class Precision { kFloat32, kBFloat16, kAutocast };
enum class Form { kPlain, kDropout, kAccumulated, kCheckpointed, kCheckpointedWithDropout };
constexpr std::array<const char*, 3> kPrecisions = {"Float32", "BFloat16", "Autocast"};
constexpr std::array<const char*, 5> kForms = {"Plain", "Dropout", "Accumulated", "Checkpointed",
                                               "CheckpointedWithDropout"};

// One micro-batch a row; the last one's loss is left to the caller's backward().
at::Tensor accumulated_loss(Decoder& model, const at::Tensor& batch) {
  const at::Tensor count = at::full({}, 64.0, at::kFloat);
  const auto part = [&](int64_t row) {
    const at::Tensor ids = batch.slice(0, row, row + 1);
    return model->loss(ids.slice(1, 0, 32), ids.slice(1, 1, 33), count);
  };
  at::Tensor first = part(0);
  first.backward();
  at::Tensor second = part(1);
  return second + first.detach();
}

at::Tensor loss_in(Form form, Decoder& model, const at::Tensor& batch) {
  if (form == Form::kAccumulated) return accumulated_loss(model, batch);
  if (form == Form::kPlain || form == Form::kDropout) return next_token_loss(model, batch);
  const at::Tensor anchor = at::zeros({}).requires_grad_();
  return test::Recompute::apply(anchor, [model, batch]() mutable { return next_token_loss(model, batch); });
}

class LlamaStep : public ::testing::TestWithParam<std::tuple<Precision, Form>> {};

TEST_P(LlamaStep, IsBitEqualToEager) {
  const auto [precision, form] = GetParam();
  const bool dropout = form == Form::kDropout || form == Form::kCheckpointedWithDropout;
  DecoderTwins twins([&] { return make_decoder(dropout ? 0.2 : 0.0); },
                     [&, precision = precision, form = form](Decoder& model, const at::Tensor& batch) {
                       const test::AutocastScope autocast(precision == Precision::kAutocast);
                       return loss_in(form, model, batch);
                     },
                     precision == Precision::kBFloat16 ? at::kBFloat16 : at::kFloat);
  twins.run(10, tokens);
  expect_planned(twins);
  EXPECT_EQ(twins.graph_text().find("bernoulli") != std::string::npos, dropout) << "attention draws from the generator";
}

INSTANTIATE_TEST_SUITE_P(Matrix, LlamaStep,
                         ::testing::Combine(::testing::Values(Precision::kFloat32, Precision::kBFloat16,
                                                              Precision::kAutocast),
                                            ::testing::Values(Form::kPlain, Form::kDropout, Form::kAccumulated,
                                                              Form::kCheckpointed, Form::kCheckpointedWithDropout)),
                         [](const auto& info) {
                           return std::string(kPrecisions[static_cast<size_t>(std::get<0>(info.param))]) +
                                  kForms[static_cast<size_t>(std::get<1>(info.param))];
                         });

TEST(Llama, TraceNamesPhasesAndModules) {
  DecoderTwins twins([] { return make_decoder(); }, next_token_loss);
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
