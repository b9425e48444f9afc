// Steps of a pipeline whose ranks are threads of this process, against the same steps of one rank: in float64 both
// compute the same, but for the order of sums.
#include <algorithm>
#include <regex>
#include <string>
#include <vector>

#include "tests/train/rank_learner_test.h"

namespace stepc::train {
namespace {

class PipelineLearnerTest : public RankLearnerTest {
 protected:
  void make_model_of(int64_t layers, bool ties) {
    make_model(
        [&](models::DecoderConfig& shape) {
          shape.num_hidden_layers = layers;
          shape.tie_word_embeddings = ties;
        },
        [](const std::string& /*name*/, at::Tensor /*weight*/) {});
  }
  // What all ranks are told, empty: their step is planned.
  std::string error_of(const Setting& setting) {
    const auto errors = on_every(strategy_of(setting), [&](const std::shared_ptr<Ranks>& ranks) -> std::string {
      try {
        RankLearner learner(model(setting), config(setting), strategy_of(setting), ranks);
        learner.plan(batch(setting, 0));
      } catch (const UserError& error) {
        return error.what();
      }
      return {};
    });
    EXPECT_EQ(errors[0], errors.back());
    return errors[0];
  }
};

TEST_F(PipelineLearnerTest, AllForwardPassesFirst) {
  Setting gpipe{"pp=2", 0, 3};
  gpipe.order = "gpipe";
  expect_same(gpipe, 1e-10, 1e-9);
  gpipe.micro_batches = 1;
  expect_same(gpipe, 1e-10, 1e-9);
}

TEST_F(PipelineLearnerTest, EveryAxisBesideIt) {
  std::vector<Setting> settings = {{"pp=2,dp_shard=2", 1, 2},      {"pp=2,tp=2", 0, 2},
                                   {"pp=2,dp_shard=2", 3, 2},      {"pp=2,dp_replicate=2", 0, 2},
                                   {"pp=2,dp_shard=2", 2, 2},      {"pp=2,tp=2", 0, 2, "adamw", "float64", false},
                                   {"pp=2,dp_shard=2,tp=2", 3, 2}, {"pp=2,dp_replicate=2,dp_shard=2", 3, 2}};
  for (const Context context : {Context::kRing, Context::kHeads, Context::kByPrice}) {
    Setting setting{"pp=2,cp=2", 0, 2};
    setting.context = context;
    settings.push_back(setting);
  }
  if (std::getenv("STEPC_MATRIX") == nullptr) settings.resize(2);
  for (const Setting& setting : settings) expect_same(setting, 1e-10, 1e-9);
}

// The residual stream of each micro-batch forward, its gradient back, and some numbers.
TEST_F(PipelineLearnerTest, BytesSentAreTheFormulas) {
  const Setting setting{"pp=2", 0, 4};
  const Batch given = batch(setting, 0);
  const auto formula =
      static_cast<uint64_t>(given.tokens.numel() * open_model_directory(directory_ / "model").config.hidden_size) *
      sizeof(double);
  const auto sent = on_every(strategy_of(setting), [&](const std::shared_ptr<Ranks>& ranks) {
    RankLearner learner(model(setting), config(setting), strategy_of(setting), ranks);
    learner.plan(given);
    learner.load(config(setting));
    learner.step(given, 1e-3);  // which is compared
    const uint64_t before = ranks->traffic().sent_bytes;
    learner.step(given, 1e-3);
    return ranks->traffic().sent_bytes - before;
  });
  for (const uint64_t bytes : sent) {
    EXPECT_GE(bytes, formula);
    EXPECT_LE(bytes, formula + 1024);
  }
}

TEST_F(PipelineLearnerTest, FiveLayersInFourStages) {
  make_model_of(5, false);
  expect_same({"pp=4", 0, 4}, 1e-10, 1e-9);
}

TEST_F(PipelineLearnerTest, SeveralStagesARank) {
  make_model_of(4, true);
  Setting setting{"pp=2", 0, 4};
  setting.chunks = 2;
  expect_same(setting, 1e-10, 1e-9);
}

// Backward passes for inputs and for weights apart; of V shapes the first rank has the first stage and the last one.
TEST_F(PipelineLearnerTest, ZeroBubbleOrders) {
  make_model_of(4, true);
  std::vector<Setting> settings = {{"pp=2", 0, 3},      {"pp=2", 0, 4},     {"pp=2", 0, 4}, {"pp=2,dp_shard=2", 3, 2},
                                   {"pp=2,tp=2", 0, 4}, {"pp=2,cp=2", 0, 4}};
  const std::vector<std::string> orders = {"zb-h1", "zb-v", "dualpipe-v", "zb-h1", "dualpipe-v", "zb-v"};
  for (size_t i = 0; i < settings.size(); ++i) settings[i].order = orders[i];
  if (std::getenv("STEPC_MATRIX") == nullptr) settings.resize(2);
  for (const Setting& setting : settings) expect_same(setting, 1e-10, 1e-9);
}

// Minutes: STEPC_MATRIX=1 asks for all of it.
TEST_F(PipelineLearnerTest, EightRanksTakeTwentySteps) {
  if (std::getenv("STEPC_MATRIX") == nullptr) {
    GTEST_SKIP() << "STEPC_MATRIX=1 runs it";
  }
  make_model_of(8, true);
  for (Setting setting :
       {Setting{"pp=2,dp_shard=2,tp=2", 3, 2}, Setting{"pp=4,dp_shard=2", 3, 4}, Setting{"pp=8", 0, 8}}) {
    setting.steps = 20;
    expect_same(setting, 1e-10, 1e-9);
  }
}

TEST_F(PipelineLearnerTest, ATiedEmbeddingIsInBothEnds) {
  make_model_of(3, true);
  expect_same({"pp=2,dp_shard=2", 3, 2}, 1e-10, 1e-9);
}

TEST_F(PipelineLearnerTest, OtherOptimizersAndAdapters) {
  expect_same({"pp=2", 0, 2, "adamw", "float64", true, 4}, 1e-10, 1e-9);
  expect_same({"pp=2", 0, 2, "adamw", "float16"}, 3e-2, 1e-2);
}

TEST_F(PipelineLearnerTest, ARunGoesOnWithOtherStages) {
  make_model_of(4, true);
  const Setting before = {"pp=2,dp_shard=2", 3, 4};
  const auto whole = run_steps(before, 0, 3, {}, directory_ / "whole");
  run_steps(before, 0, 1, {}, directory_ / "first");
  for (const Setting& after : std::vector<Setting>{before, {"pp=4", 0, 4}, {"tp=2", 0, 4}}) {
    const fs::path to = directory_ / str("after {}", after.mesh);
    const auto rest = run_steps(after, 1, 2, directory_ / "first", to);
    const bool is_same = after.mesh == before.mesh;
    for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(rest[i], whole[i + 1], is_same ? 0 : 1e-10) << after.mesh;
    for (const std::string& which : {std::string(kModelFiles), std::string(kOptimizerFiles)}) {
      const auto a = load_tensors(TensorFiles(directory_ / "whole", which)), b = load_tensors(TensorFiles(to, which));
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i) {
        if (!a[i].second.is_floating_point() || a[i].second.numel() == 0) continue;
        EXPECT_LE((a[i].second - b[i].second).abs().max().item<double>(), is_same ? 0 : 1e-9) << a[i].first;
      }
    }
  }
}

TEST_F(PipelineLearnerTest, TextIsSampled) {
  const Setting setting{"pp=2", 0, 2};
  LocalLearner one(model(setting), config(setting));
  one.plan(batch(setting, 0));
  one.load(config(setting));
  const SampleOptions options{.tokens = 10, .seed = 3};
  const std::string expected = one.sample("a text", options).text;
  const auto texts = on_every(strategy_of(setting), [&](const std::shared_ptr<Ranks>& ranks) {
    RankLearner learner(model(setting), config(setting), strategy_of(setting), ranks);
    learner.plan(batch(setting, 0));
    learner.load(config(setting));
    return learner.sample("a text", options).text;
  });
  for (const std::string& text : texts) EXPECT_EQ(text, expected);
}

// It spreads to the other stage in the backward pass; the function that made it first is the cause.
TEST_F(PipelineLearnerTest, WhereALossIsNotANumberIsFound) {
  make_model([](models::DecoderConfig& /*shape*/) {},
             [](const std::string& name, at::Tensor weight) {
               if (name.ends_with("1.mlp.gate_proj.weight") || name.ends_with("1.mlp.up_proj.weight"))
                 weight.mul_(1e25);
             });
  const Setting setting{"pp=2", 0, 2, "adamw", "float32"};
  const auto found = on_every(strategy_of(setting), [&](const std::shared_ptr<Ranks>& ranks) {
    RankLearner learner(model(setting), config(setting), strategy_of(setting), ranks);
    learner.plan(batch(setting, 0));
    learner.load(config(setting));
    EXPECT_FALSE(std::isfinite(learner.step(batch(setting, 0), 1e-3).loss));
    learner.restore_fresh(directory_ / "model", config(setting));
    return learner.find_nonfinite_in(batch(setting, 0)).value_or("");
  });
  EXPECT_TRUE(found[0].starts_with("model.layers.1.mlp") && found[0].ends_with(" on rank 1")) << found[0];
  EXPECT_EQ(found[1], found[0]);
}

// With what a stage holds of the model, and of all micro-batches that are on their way; it recomputes the rest.
TEST_F(PipelineLearnerTest, StaysWithinABudget) {
  make_model_of(4, false);
  Setting setting{"pp=2", 0, 4};
  setting.order = "gpipe";
  const Stats free = on_every(strategy_of(setting), [&](const std::shared_ptr<Ranks>& ranks) {
    RankLearner learner(model(setting), config(setting), strategy_of(setting), ranks);
    learner.plan(batch(setting, 0));
    return learner.stats();
  })[0];  // the first stage holds more
  const uint64_t budget = free.state_bytes + free.planned_peak_bytes / 2;
  setting.budget = str("{}KiB", budget / 1024);
  const Stats bound = expect_same(setting, 1e-10, 1e-9).stats;
  EXPECT_EQ(bound.state_bytes, free.state_bytes);
  EXPECT_LE(bound.state_bytes + bound.measured_peak_bytes, budget);
}

// The least that a budget can be works.
TEST_F(PipelineLearnerTest, ABudgetThatIsTooSmallSaysTheLeast) {
  Setting setting{"pp=2", 0, 2};
  setting.budget = "8KiB";
  const std::string error = error_of(setting);
  std::smatch found;
  ASSERT_TRUE(std::regex_match(error, found,
                               std::regex("the memory budget is 8\\.0 KiB, and a rank of the pipeline takes "
                                          "([0-9]+KiB) at the least: give that much, or take more stages or smaller "
                                          "micro-batches")))
      << error;
  setting.budget = found[1];
  EXPECT_EQ(error_of(setting), "");
}

// What costs little is recomputed, in stages that hold many micro-batches.
TEST_F(PipelineLearnerTest, ABudgetAutoWeighsTime) {
  make_model_of(4, false);
  Setting setting{"pp=2", 0, 4};
  setting.order = "gpipe";
  const auto planned = [&] {
    return on_every(strategy_of(setting), [&](const std::shared_ptr<Ranks>& ranks) {
      RankLearner learner(model(setting), config(setting), strategy_of(setting), ranks);
      learner.plan(batch(setting, 0));
      return std::pair(learner.stats().planned_peak_bytes, learner.prediction()->seconds);
    })[0];
  };
  const auto [free_bytes, free_seconds] = planned();
  setting.budget = "auto";
  const auto [bytes, seconds] = planned();
  EXPECT_LT(bytes, free_bytes);
  EXPECT_LE(seconds, 1.08 * free_seconds);
  expect_same(setting, 1e-10, 1e-9);
}

// Two gradients a step, each of all micro-batches, the second one where the first leads uphill.
TEST_F(PipelineLearnerTest, WsamTakesTwoGradients) {
  std::vector<Setting> settings = {{"pp=2", 0, 2, "wsam"}, {"pp=2,dp_shard=2", 3, 2, "wsam"}};
  if (std::getenv("STEPC_MATRIX") == nullptr) settings.resize(1);
  for (const Setting& setting : settings) expect_same(setting, 1e-10, 1e-9);
  expect_same({"pp=2", 0, 2, "wsam", "float16"}, 3e-2, 1e-2);
}

TEST_F(PipelineLearnerTest, WhatCannotBeIsRefused) {
  EXPECT_EQ(error_of({"pp=2", 0, 1}),
            "parallel.pp = 2: 1 micro-batch for 2 stages in the order \"1f1b\", which needs one a stage: "
            "micro_batches must be at least 2");
  EXPECT_EQ(error_of({"pp=3", 0, 3}),
            "parallel.pp = 3: the model has 2 layers, and each stage needs one; pp can be at most 2");
  Setting named{"pp=2", 0, 2};
  named.stages = {"layers.0", "layer.1"};
  EXPECT_EQ(
      error_of(named),
      "parallel.stages: a stage begins with 'layer.1', and the model has no such module; did you mean 'layers.1'?");
}

}  // namespace
}  // namespace stepc::train
