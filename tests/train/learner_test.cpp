// The whole step, optimizer by optimizer and precision by precision: captured whole, bit-equal to eager, and the same
// however the batch is cut.
#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "data/tokenizer_json.h"
#include "tests/temp_dir.h"
#include "train/model/adapter_choice.h"
#include "train/step/local_learner.h"

namespace stepc::train {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSeq = 24;
constexpr int64_t kVocab = 257;

class LearnerTest : public ::testing::Test {
 protected:
  LearnerTest() {
    fs::create_directory(directory_ / "model");
    models::DecoderConfig shape;
    shape.vocab_size = kVocab;
    shape.hidden_size = 32;
    shape.intermediate_size = 64;
    shape.num_hidden_layers = 2;
    shape.num_attention_heads = shape.num_key_value_heads = 2;
    shape.head_dim = 16;
    models::Decoder model(shape);
    model->initialize(1);
    write_model_files(directory_ / "model", shape, {{"tokenizer.json", make_byte_tokenizer_json()}},
                      model->persistent_state());
    config_.model.path = (directory_ / "model").string();
    config_.model.compute = "float32";
    config_.optim.lr = 1e-3;
  }

  [[nodiscard]] LocalLearner learner() const {
    LocalLearner learner(open_model_directory(directory_ / "model"), config_);
    learner.load(config_);
    return learner;
  }

  // Documents of 5 to 20 tokens, of which the last is no label's; a row's first tokens are not learned, and its last
  // are padding in some rows: whatever the cut, micro-batches have different numbers of tokens.
  static Batch batch(int64_t micro_batches, int64_t rows, uint64_t seed) {
    const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    const int64_t all = micro_batches * rows;
    Batch batch;
    batch.tokens = at::randint(0, kVocab, {all, kSeq}, generator, at::kLong);
    batch.labels = at::randint(0, kVocab, {all, kSeq}, generator, at::kLong);
    batch.documents = at::zeros({all, kSeq}, at::kLong);
    for (int64_t row = 0; row < all; ++row) {
      const int64_t end = 5 + 2 * row;
      batch.documents[row].slice(0, end).fill_(1);
      batch.labels[row][end - 1] = -100;
      batch.labels[row].slice(0, 0, row % 4).fill_(-100);
      if (row % 3 == 0) batch.labels[row].slice(0, kSeq - 4).fill_(-100);
    }
    for (at::Tensor* tensor : {&batch.tokens, &batch.labels, &batch.documents})
      *tensor = tensor->view({micro_batches, rows, kSeq});
    return batch;
  }

  // Copies of everything that training changes.
  static std::map<std::string, at::Tensor> state(LocalLearner& learner) {
    std::map<std::string, at::Tensor> state;
    for (const auto& [name, tensor] : learner.weights()) state["weight " + name] = tensor.detach().clone();
    for (const auto& [name, tensor] : learner.state()) state["state " + name] = tensor.clone();
    return state;
  }

  TempDir directory_;
  RunConfig config_;
};

struct Precision {
  const char* name;
  const char* compute;
  bool master_weights;
};
constexpr Precision kPrecisions[] = {{"float32", "float32", true},
                                     {"master weights", "bfloat16", true},
                                     {"stochastic rounding", "bfloat16", false},
                                     {"loss scaling", "float16", true}};

class EveryOptimizer : public LearnerTest, public ::testing::WithParamInterface<std::string> {
 protected:
  struct Outcome {
    std::vector<TrainedStep> steps;
    std::map<std::string, at::Tensor> state;
    Stats stats;
  };
  Outcome run(const std::string& mode) {
    config_.train.mode = mode;
    config_.train.micro_batches = 2;
    at::manual_seed(7);
    LocalLearner learner = this->learner();
    Outcome outcome;
    for (uint64_t i = 0; i < 10; ++i) outcome.steps.push_back(learner.step(batch(2, 2, i), 1e-3 / (1.0 + double(i))));
    outcome.state = state(learner);
    outcome.stats = learner.stats();
    return outcome;
  }
};

TEST_P(EveryOptimizer, IsCapturedWholeAndBitEqualToEager) {
  config_.optim.name = GetParam();
  for (const Precision& precision : kPrecisions) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, precision.name);
    config_.model.compute = precision.compute;
    config_.optim.master_weights = precision.master_weights;
    const Outcome eager = run("eager");
    const Outcome exact = run("exact");
    EXPECT_GE(exact.stats.replays, 7U);
    EXPECT_EQ(exact.stats.plans, 1U);
    EXPECT_EQ(exact.stats.recordings, 2U);
    EXPECT_EQ(exact.stats.guards, 0U) << "the host read a number of the step";
    EXPECT_EQ(exact.stats.unplanned_allocations, 0U);
    EXPECT_TRUE(exact.stats.warnings.empty()) << exact.stats.warnings.front();
    for (size_t i = 0; i < eager.steps.size(); ++i) {
      EXPECT_EQ(eager.steps[i].loss, exact.steps[i].loss) << "step " << i;
      EXPECT_EQ(eager.steps[i].grad_norm, exact.steps[i].grad_norm) << "step " << i;
      EXPECT_EQ(eager.steps[i].skipped, exact.steps[i].skipped) << "step " << i;
    }
    ASSERT_EQ(eager.state.size(), exact.state.size());
    for (const auto& [name, tensor] : eager.state) {
      ASSERT_TRUE(exact.state.contains(name)) << name;
      EXPECT_TRUE(at::equal(tensor, exact.state.at(name))) << name;
    }
    EXPECT_LT(exact.steps.back().loss, 6.5) << "a loss of nothing learned is " << std::log(kVocab);
  }
}
INSTANTIATE_TEST_SUITE_P(Optimizers, EveryOptimizer, ::testing::Values("adamw", "sgd", "agd", "wsam", "lion"));

// 8 x 1, 2 x 4 and 1 x 8 are one batch: the loss is a mean over all its tokens, masked ones left out.
TEST_F(LearnerTest, TheCutOfABatchChangesNothing) {
  for (const char* name : {"adamw", "wsam"}) {
    config_.optim.name = name;
    std::vector<TrainedStep> results;
    std::vector<std::map<std::string, at::Tensor>> states;
    for (const auto& [micro_batches, rows] : {std::pair<int64_t, int64_t>{1, 8}, {8, 1}, {2, 4}}) {
      config_.train.micro_batches = micro_batches;
      LocalLearner learner = this->learner();
      for (uint64_t i = 0; i < 4; ++i) results.push_back(learner.step(batch(micro_batches, rows, i), 1e-3));
      states.push_back(state(learner));
    }
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_NEAR(results[i].loss, results[i % 4].loss, 2e-6 * results[i % 4].loss) << name << " " << i;
      EXPECT_NEAR(results[i].grad_norm, results[i % 4].grad_norm, 1e-5 * results[i % 4].grad_norm) << name << " " << i;
    }
    for (const auto& other : states) {
      for (const auto& [key, tensor] : states.front()) {
        if (!key.starts_with("weight ")) continue;
        EXPECT_TRUE(at::allclose(tensor, other.at(key), 1e-5, 2e-5)) << name << " " << key;
      }
    }
  }
}

// In bfloat16 every micro-batch's gradient is rounded, their sum is not: eleven equal ones are eleven times one. (Fast
// mode's fused sums of a gradient are not rounded either.)
TEST_F(LearnerTest, MicroBatchesAddUpInFloat32) {
  constexpr int64_t kCount = 11;
  config_.train.mode = "exact";
  config_.train.micro_batches = kCount;
  config_.model.compute = "bfloat16";
  config_.optim.name = "sgd";  // its first momentum is the gradient
  config_.optim.weight_decay = 0;
  config_.optim.clip = 1e9;
  Batch equal = batch(1, 2, 3);
  for (at::Tensor* tensor : {&equal.tokens, &equal.labels, &equal.documents})
    *tensor = tensor->expand({kCount, 2, kSeq}).contiguous();
  LocalLearner learner = this->learner();
  learner.step(equal, 1e-3);
  int64_t compared = 0;
  for (const auto& [name, momentum] : learner.state()) {
    if (!name.ends_with(".momentum")) continue;
    const at::Tensor one = momentum / kCount;
    EXPECT_TRUE(at::allclose(one, one.to(at::kBFloat16).to(at::kFloat), 1e-6, 1e-30)) << name;
    ++compared;
  }
  EXPECT_EQ(compared, 21);
}

// A row's padding, and what stands where no label counts, is as if it were not there.
TEST_F(LearnerTest, WhatHasNoLabelDoesNotCount) {
  const Batch padded = batch(1, 4, 1);
  Batch other = batch(1, 4, 1);
  const at::Tensor tail = other.tokens.select(1, 0).slice(1, kSeq - 4);
  tail.copy_((tail + 1).remainder(kVocab));
  LocalLearner first = learner();
  LocalLearner second = learner();
  EXPECT_EQ(first.step(padded, 1e-3).loss, second.step(other, 1e-3).loss);
}

TEST_F(LearnerTest, AnAdaptersStepIsCapturedWhole) {
  config_.lora.rank = 4;
  config_.lora.dropout = 0.1;
  config_.model.compute = "bfloat16";
  ModelDirectory directory = open_model_directory(directory_ / "model");
  choose_adapter(config_, directory);
  LocalLearner learner(directory, config_);
  for (uint64_t i = 0; i < 5; ++i) learner.step(batch(2, 2, i), 1e-3);
  EXPECT_GE(learner.stats().replays, 2U);
  EXPECT_EQ(learner.stats().plans, 1U);
  EXPECT_EQ(learner.stats().unplanned_allocations, 0U);
  EXPECT_TRUE(learner.stats().warnings.empty());
}

// The first scale is 65536: large gradients overflow until it was halved often enough.
TEST_F(LearnerTest, AFloat16StepThatOverflowsChangesNothing) {
  const fs::path file = directory_ / "model/model.safetensors";
  NamedTensors weights = load_tensors(file);
  for (auto& [name, tensor] : weights)
    if (name == "lm_head.weight") tensor.mul_(200);
  save_tensors(file, weights);
  config_.model.compute = "float16";
  LocalLearner learner = this->learner();
  int skipped = 0;
  auto before = state(learner);
  for (uint64_t i = 0; i < 12; ++i) {
    const TrainedStep result = learner.step(batch(1, 2, i), 1e-3);
    EXPECT_TRUE(std::isfinite(result.loss));
    EXPECT_EQ(result.skipped, !std::isfinite(result.grad_norm));
    auto after = state(learner);
    for (const auto& [key, tensor] : after) {
      if (!key.starts_with("weight ") || !key.ends_with("q_proj.weight")) continue;
      EXPECT_EQ(at::equal(tensor, before.at(key)), result.skipped) << key << " in step " << i;
    }
    skipped += result.skipped ? 1 : 0;
    before = std::move(after);
  }
  EXPECT_GT(skipped, 0);
  EXPECT_LT(skipped, 12);
}

}  // namespace
}  // namespace stepc::train
