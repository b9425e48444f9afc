#include "train/run/memory_need.h"

#include <gtest/gtest.h>

#include "data/tokenizer_json.h"
#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc::train {
namespace {

class MemoryNeedTest : public ::testing::Test {
 protected:
  MemoryNeedTest() {
    shape_.vocab_size = 257;
    shape_.hidden_size = 32;
    shape_.intermediate_size = 64;
    shape_.num_hidden_layers = 2;
    shape_.num_attention_heads = shape_.num_key_value_heads = 2;
    shape_.head_dim = 16;
    models::Decoder model(shape_);
    write_model_files(directory_.path(), shape_, {{"tokenizer.json", make_byte_tokenizer_json()}},
                      model->persistent_state());
  }
  [[nodiscard]] MemoryNeed need() const { return memory_need(config_, open_model_directory(directory_.path()), 7); }

  TempDir directory_;
  models::DecoderConfig shape_;
  RunConfig config_;
};

TEST_F(MemoryNeedTest, EveryTensorIsCounted) {
  const auto count = static_cast<uint64_t>(shape_.parameter_count());
  constexpr uint64_t kScalars = 8 + 4;  // learning rate and step
  config_.output.save_every = 0;
  EXPECT_EQ(need().weights, 2 * count);
  EXPECT_EQ(need().optimizer, 12 * count + kScalars);
  EXPECT_EQ(need().gradients, 2 * count);
  EXPECT_EQ(need().copies.staging, 0U);
  EXPECT_EQ(need().total(), 16 * count + kScalars);
  config_.output.save_every = 5;  // master weights are what is saved
  EXPECT_EQ(need().copies.staging, 12 * count + kScalars);
  config_.train.micro_batches = 2;
  EXPECT_EQ(need().gradients, 4 * count);
  config_.model.compute = "float32";
  config_.optim.name = "sgd";
  EXPECT_EQ(need().optimizer, 4 * count + kScalars);
}

TEST_F(MemoryNeedTest, AdaptersAreTrainedAlone) {
  config_.lora.rank = 4;
  config_.output.save_every = 0;
  ModelDirectory directory = open_model_directory(directory_.path());
  const uint64_t whole = need().optimizer;
  directory.adapter = models::LoraConfig();
  directory.adapter->rank = 4;
  directory.adapter->target_modules = {"all-linear"};
  const MemoryNeed adapted = memory_need(config_, directory, 0);
  EXPECT_LT(adapted.optimizer, whole / 2);
  EXPECT_GT(adapted.weights, need().weights);
}

TEST_F(MemoryNeedTest, WhatIsNotThereIsRefused) {
  const ModelDirectory directory = open_model_directory(directory_.path());
  EXPECT_NO_THROW(check_memory_need(directory, need()));
  EXPECT_USER_ERROR(check_memory_need(directory, {.weights = uint64_t{1} << 60, .gradients = 1024}),
                    "(weights 1048576.0 TiB, gradients 1.0 KiB) needs at least 1048576.0 TiB of memory, there is ");
}

}  // namespace
}  // namespace stepc::train
