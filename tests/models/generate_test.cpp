#include "models/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"

namespace stepc::models {
namespace {

Decoder small_model() {
  DecoderConfig config = DecoderConfig::preset("bench-1.8m");
  config.vocab_size = 64;
  config.num_hidden_layers = 1;
  config.initializer_range = 0.5;  // peaked distributions
  Decoder model(config);
  model->initialize(3);
  return model;
}

TEST(Generate, GreedyFollowsTheLikeliestToken) {
  const torch::NoGradGuard no_grad;
  Decoder model = small_model();
  const std::vector<int64_t> out = generate(model, {5, 9}, {.new_tokens = 6, .temperature = 0.0});
  ASSERT_EQ(out.size(), 6);
  std::vector<int64_t> ids = {5, 9};
  for (const int64_t id : out) {
    const at::Tensor logits = model->forward(at::tensor(ids).unsqueeze(0));
    EXPECT_EQ(id, logits[0][-1].argmax().item<int64_t>());
    ids.push_back(id);
  }
}

TEST(Generate, SamplingIsSeededAndStaysWithinTheBounds) {
  Decoder model = small_model();
  const GenerateOptions options{.new_tokens = 40, .temperature = 5.0, .context = 4, .vocab_size = 20, .seed = 1};
  const auto first = generate(model, {5}, options);
  EXPECT_EQ(first, generate(model, {5}, options));
  EXPECT_THAT(first, testing::Each(testing::Lt(20)));
  GenerateOptions other = options;
  other.seed = 2;
  EXPECT_NE(first, generate(model, {5}, other));
}

TEST(Generate, TopOneIsGreedyAtAnyTemperature) {
  Decoder model = small_model();
  EXPECT_EQ(generate(model, {5}, {.new_tokens = 8, .temperature = 9.0, .top_k = 1}),
            generate(model, {5}, {.new_tokens = 8, .temperature = 0.0}));
}

TEST(Generate, StopsBeforeAStopToken) {
  Decoder model = small_model();
  const auto free = generate(model, {5}, {.new_tokens = 8, .temperature = 0.0});
  const auto stopped = generate(model, {5}, {.new_tokens = 8, .temperature = 0.0, .stop_ids = {free[0]}});
  EXPECT_TRUE(stopped.empty());
}

TEST(Generate, RefusesWhatTheModelCannotRead) {
  Decoder model = small_model();
  EXPECT_THROW(generate(model, {}, {}), UserError);
  EXPECT_THROW(generate(model, {64}, {}), UserError);
  EXPECT_THROW(generate(model, {-1}, {}), UserError);
  EXPECT_THROW(generate(model, {1}, {.temperature = -1.0}), UserError);
  EXPECT_THROW(generate(model, {1}, {.vocab_size = 65}), UserError);
}

}  // namespace
}  // namespace stepc::models
