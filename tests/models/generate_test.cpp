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
  const at::NoGradGuard no_grad;
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

// What the model sees of ids after the prompt and what was generated, if it sees at most four tokens.
TEST(Generate, ATextThatOutgrowsTheContextGoesOnWithItsNewerHalf) {
  const torch::NoGradGuard no_grad;
  Decoder model = small_model();
  const GenerateOptions options{.new_tokens = 6, .temperature = 0.0, .context = 4, .kept = 1};
  const std::vector<int64_t> out = generate(model, {5, 9, 11, 12, 13, 14}, options);
  ASSERT_EQ(out.size(), 6);
  std::vector<int64_t> seen = {5, 12, 13, 14};
  for (const int64_t id : out) {
    EXPECT_EQ(id, model->forward(at::tensor(seen).unsqueeze(0))[0][-1].argmax().item<int64_t>());
    seen.push_back(id);
    if (seen.size() > 4) seen = {5, id};
  }
}

TEST(Generate, LearnedPositionsDoNotEndTheText) {
  DecoderConfig config = DecoderConfig::from_json(
      R"({"model_type": "gpt2", "vocab_size": 48, "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 8})");
  Decoder model(config);
  model->initialize(3);
  for (const int64_t context : {0, 100}) {
    const auto out = generate(model, std::vector<int64_t>(20, 1), {.new_tokens = 12, .context = context});
    EXPECT_EQ(out.size(), 12);
  }
}

TEST(Generate, EndsWhenItIsTold) {
  Decoder model = small_model();
  GenerateOptions options{.new_tokens = 8, .temperature = 0.0};
  const auto whole = generate(model, {5}, options);
  options.done = [](const std::vector<int64_t>& ids) { return ids.size() == 3; };
  EXPECT_EQ(generate(model, {5}, options), std::vector<int64_t>(whole.begin(), whole.begin() + 3));
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
