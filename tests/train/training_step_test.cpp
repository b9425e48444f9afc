// A step in parts is the step in one piece.
#include "train/step/training_step.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "capture/virtual/virtual_region.h"
#include "models/lora.h"

namespace stepc::train {
namespace {

constexpr int64_t kVocab = 96, kRows = 2, kSeq = 16;
constexpr double kClip = 0.5;

class TrainingStepTest : public ::testing::Test {
 protected:
  TrainingStepTest() {
    config_.optim.lr = 1e-2;
    shape_.vocab_size = kVocab;
    shape_.hidden_size = 32;
    shape_.intermediate_size = 64;
    shape_.num_hidden_layers = 2;
    shape_.num_attention_heads = shape_.num_key_value_heads = 2;
    shape_.head_dim = 16;
  }

  [[nodiscard]] models::Decoder model() const {
    models::Decoder model(shape_, models::scalar_type(config_.model.compute));
    model->initialize(1);
    return model;
  }
  [[nodiscard]] ChosenOptimizer optimizer_of(const models::Decoder& model) const {
    return choose_optimizer(config_, models::trainable_parameters(model));
  }
  static Batch batch(int64_t micro_batches, int64_t step) {
    const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(step));
    Batch batch;
    batch.tokens = at::randint(0, kVocab, {micro_batches, kRows, kSeq}, generator, at::kLong);
    batch.labels = batch.tokens.roll(-1, 2);
    for (int64_t i = 0; i < micro_batches; ++i) batch.labels[i].slice(1, 0, 3 * i).fill_(-100);
    return batch;
  }
  static Config engine(Mode mode) {
    Config config;
    config.mode = mode;
    return config;
  }

  RunConfig config_;
  models::DecoderConfig shape_;
};

// Bit by bit: what is held begins at zero, to which the first gradient is added. In float16 with its loss scale, too.
TEST_F(TrainingStepTest, InPartsIsTheStepInOnePiece) {
  for (const char* compute : {"float32", "bfloat16", "float16"}) {
    config_.model.compute = compute;
    models::Decoder plain = model(), accelerated = model();
    const ChosenOptimizer plain_optimizer = optimizer_of(plain), optimizer = optimizer_of(accelerated);
    const TrainStep whole = make_train_step(plain, plain_optimizer, kClip);
    TrainingStep parts(accelerated, optimizer, kClip, /*micro_batches=*/3, engine(Mode::kExact));
    for (int64_t step = 0; step < 6; ++step) {
      const Batch one = batch(3, step);
      const auto [loss, norm, skipped] = whole(one.tensors());
      const auto [loss_of_parts, norm_of_parts, skipped_by_parts] = parts(one);
      EXPECT_TRUE(at::equal(loss, loss_of_parts)) << compute << step;
      EXPECT_TRUE(at::equal(norm, norm_of_parts)) << compute << step;
      EXPECT_TRUE(at::equal(skipped, skipped_by_parts)) << compute << step;
    }
    const auto expected = plain_optimizer.optimizer->named_state(), found = optimizer.optimizer->named_state();
    ASSERT_EQ(expected.size(), found.size());
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(at::equal(expected[i].second, found[i].second)) << compute << expected[i].first;
    for (size_t i = 0; i < plain->parameters().size(); ++i)
      EXPECT_TRUE(at::equal(plain->parameters()[i], accelerated->parameters()[i])) << compute << i;
    EXPECT_TRUE(parts.is_settled());
    EXPECT_EQ(parts.stats().plans, 2U) << compute;
  }
}

// Planned with shapes alone, whatever the number of micro-batches; one that is larger is no larger plan.
TEST_F(TrainingStepTest, PlansDoNotGrowWithMicroBatches) {
  Stats stats[2];
  const int64_t counts[] = {2, 40};
  for (size_t i = 0; i < 2; ++i) {
    Config config = engine(Mode::kFast);
    config.capture = Capture::kVirtual;
    std::optional<VirtualRegion> region(std::in_place);
    models::Decoder decoder(shape_);
    const ChosenOptimizer optimizer = optimizer_of(decoder);
    TrainingStep step(decoder, optimizer, kClip, counts[i], config);
    region.reset();
    ASSERT_TRUE(step.capture(batch(counts[i], 0)));
    stats[i] = step.stats();
    EXPECT_NE(step.memory_text(), "");
  }
  EXPECT_EQ(stats[0].instructions, stats[1].instructions);
  EXPECT_EQ(stats[0].planned_peak_bytes, stats[1].planned_peak_bytes);
  EXPECT_EQ(stats[0].state_bytes, stats[1].state_bytes);
}

// Of one device, where its weights stand elsewhere between its two gradients.
TEST_F(TrainingStepTest, WsamStaysWhole) {
  config_.optim.name = "wsam";
  models::Decoder decoder = model();
  const ChosenOptimizer optimizer = optimizer_of(decoder);
  EXPECT_FALSE(is_in_parts(optimizer, 4));
  TrainingStep step(decoder, optimizer, kClip, 4, engine(Mode::kEager));
  step(batch(4, 0));
  for (const at::Tensor& parameter : decoder->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

// What the update alone needs is there while a micro-batch runs, and counts against its budget.
TEST_F(TrainingStepTest, ABudgetIsOfAllThatIsThere) {
  models::Decoder decoder = model();
  const ChosenOptimizer optimizer = optimizer_of(decoder);
  Config config = engine(Mode::kFast);
  TrainingStep free(decoder, optimizer, kClip, 2, config);
  for (int64_t step = 0; step < 4; ++step) free(batch(2, step));
  const Stats unbound = free.stats();
  config.memory_budget = {MemoryBudget::Kind::kBytes,
                          unbound.state_bytes + unbound.planned_peak_bytes - unbound.planned_peak_bytes / 10};
  TrainingStep bound(decoder, optimizer, kClip, 2, config);
  for (int64_t step = 0; step < 4; ++step) bound(batch(2, step));
  EXPECT_LE(bound.stats().planned_peak_bytes, unbound.planned_peak_bytes - unbound.planned_peak_bytes / 10);
}

}  // namespace
}  // namespace stepc::train
