// A step in micro-batches is the step in one piece.
#include "train/step/training_step.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "aten/generator_snapshot.h"
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
  [[nodiscard]] Accelerated<TrainStep> step_of(const models::Decoder& model, const ChosenOptimizer& optimizer,
                                               int64_t micro_batches, const Config& engine) const {
    RunConfig config = config_;
    config.train.micro_batches = micro_batches;
    config.optim.clip = kClip;
    return accelerated_step(model, optimizer, config, engine);
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

  using Results = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
  static bool are_equal(const Results& a, const Results& b) {
    return at::equal(std::get<0>(a), std::get<0>(b)) && at::equal(std::get<1>(a), std::get<1>(b)) &&
           at::equal(std::get<2>(a), std::get<2>(b));
  }

  RunConfig config_;
  models::DecoderConfig shape_;
};

// Bit by bit, where the recorded calls run. In float16 with its loss scale, too.
TEST_F(TrainingStepTest, RecordedCallsAreTheStepItself) {
  for (const char* compute : {"float32", "bfloat16", "float16"}) {
    config_.model.compute = compute;
    models::Decoder plain = model(), accelerated = model();
    const ChosenOptimizer plain_optimizer = optimizer_of(plain), optimizer = optimizer_of(accelerated);
    const TrainStep whole = make_train_step(plain, plain_optimizer, kClip, /*micro_batches=*/3);
    Accelerated<TrainStep> step = step_of(accelerated, optimizer, 3, engine(Mode::kExact));
    for (int64_t i = 0; i < 6; ++i) {
      const Batch one = batch(3, i);
      EXPECT_TRUE(are_equal(whole(one.all_rows()), step(one.all_rows()))) << compute << i;
    }
    const auto expected = plain_optimizer.optimizer->named_state(), found = optimizer.optimizer->named_state();
    ASSERT_EQ(expected.size(), found.size());
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(at::equal(expected[i].second, found[i].second)) << compute << expected[i].first;
    for (size_t i = 0; i < plain->parameters().size(); ++i)
      EXPECT_TRUE(at::equal(plain->parameters()[i], accelerated->parameters()[i])) << compute << i;
    EXPECT_GE(step.stats().replays, 3U);
    EXPECT_EQ(step.stats().plans, 1U) << compute;
  }
}

// The same micro-batches in a loop, and cut out of one step: sums of other order, and in narrow types each gradient is
// rounded before it is added in float32.
TEST_F(TrainingStepTest, CutIsTheLoop) {
  for (const auto& [compute, error] : {std::pair("float64", 1e-12), {"bfloat16", 2e-2}, {"float16", 1e-2}}) {
    config_.model.compute = compute;
    models::Decoder plain = model(), accelerated = model();
    const ChosenOptimizer plain_optimizer = optimizer_of(plain), optimizer = optimizer_of(accelerated);
    const TrainStep loop = make_train_step(plain, plain_optimizer, kClip, 3);
    Accelerated<TrainStep> step = step_of(accelerated, optimizer, 3, engine(Mode::kFast));
    for (int64_t i = 0; i < 4; ++i) {
      const std::vector<at::Tensor> rows = batch(3, i).all_rows();
      const auto [loss, norm, skipped] = loop(rows);
      const auto [cut_loss, cut_norm, cut_skipped] = step(rows);
      EXPECT_NEAR(loss.item<double>(), cut_loss.item<double>(), error * loss.item<double>()) << compute << i;
      EXPECT_NEAR(norm.item<double>(), cut_norm.item<double>(), error * norm.item<double>()) << compute << i;
      EXPECT_TRUE(at::equal(skipped, cut_skipped)) << compute << i;
    }
    EXPECT_EQ(step.stats().replays, 4U);
    EXPECT_EQ(step.stats().eager_calls, 0U);
    EXPECT_TRUE(step.stats().warnings.empty());
    for (const at::Tensor& parameter : accelerated->parameters()) EXPECT_FALSE(parameter.grad().defined());
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
    Accelerated<TrainStep> step = step_of(decoder, optimizer, counts[i], config);
    region.reset();
    ASSERT_TRUE(step.capture(batch(counts[i], 0).all_rows()));
    stats[i] = step.stats();
    EXPECT_NE(step.memory_text(), "");
    EXPECT_TRUE(step.prediction().has_value());
  }
  EXPECT_EQ(stats[0].instructions, stats[1].instructions);
  EXPECT_EQ(stats[0].planned_peak_bytes, stats[1].planned_peak_bytes);
  EXPECT_EQ(stats[0].state_bytes, stats[1].state_bytes);
}

// Its second gradient begins with the whole of the first: two rounds of micro-batches.
TEST_F(TrainingStepTest, WsamTakesTwoRounds) {
  config_.optim.name = "wsam";
  for (const auto& [compute, error] : {std::pair("float64", 1e-12), {"bfloat16", 2e-2}, {"float16", 1e-2}}) {
    config_.model.compute = compute;
    models::Decoder plain = model(), accelerated = model();
    const ChosenOptimizer plain_optimizer = optimizer_of(plain), optimizer = optimizer_of(accelerated);
    const TrainStep loop = make_train_step(plain, plain_optimizer, kClip, 4);
    Accelerated<TrainStep> step = step_of(accelerated, optimizer, 4, engine(Mode::kFast));
    for (int64_t i = 0; i < 4; ++i) {
      const std::vector<at::Tensor> rows = batch(4, i).all_rows();
      const auto [loss, norm, skipped] = loop(rows);
      const auto [cut_loss, cut_norm, cut_skipped] = step(rows);
      EXPECT_NEAR(loss.item<double>(), cut_loss.item<double>(), error * loss.item<double>()) << compute << i;
      EXPECT_NEAR(norm.item<double>(), cut_norm.item<double>(), error * norm.item<double>()) << compute << i;
      EXPECT_TRUE(at::equal(skipped, cut_skipped)) << compute << i;
    }
    EXPECT_EQ(step.stats().replays, 4U);
    EXPECT_EQ(step.stats().eager_calls, 0U);
    EXPECT_TRUE(step.stats().warnings.empty());
    if (std::string(compute) != "float64") continue;
    for (size_t p = 0; p < plain->parameters().size(); ++p)
      EXPECT_LE((plain->parameters()[p] - accelerated->parameters()[p]).abs().max().item<double>(), 1e-10) << p;
  }
}

// What the update alone needs is there while a micro-batch runs, and counts against its budget.
TEST_F(TrainingStepTest, ABudgetIsOfAllThatIsThere) {
  models::Decoder decoder = model();
  const ChosenOptimizer optimizer = optimizer_of(decoder);
  Config config = engine(Mode::kFast);
  Accelerated<TrainStep> free = step_of(decoder, optimizer, 2, config);
  for (int64_t step = 0; step < 2; ++step) free(batch(8, step).all_rows());  // micro-batches of 8 rows
  const Stats unbound = free.stats();
  const uint64_t less = unbound.planned_peak_bytes / 10;
  config.memory_budget = {MemoryBudget::Kind::kBytes, unbound.state_bytes + unbound.planned_peak_bytes - less};
  Accelerated<TrainStep> bound = step_of(decoder, optimizer, 2, config);
  for (int64_t step = 0; step < 2; ++step) bound(batch(8, step).all_rows());
  EXPECT_LE(bound.stats().planned_peak_bytes, unbound.planned_peak_bytes - less);
}

// Masks of dropout, and of weights that are rounded by chance, are those of the undivided batch.
TEST_F(TrainingStepTest, DrawsAreThoseOfTheWholeBatch) {
  for (const auto& [compute, dropout, error] : {std::tuple("float64", 0.3, 1e-10), {"bfloat16", 0.0, 2e-2}}) {
    config_.model.compute = compute;
    config_.optim.master_weights = dropout > 0;
    std::vector<std::vector<double>> numbers;
    std::vector<at::Tensor> generators;
    for (const int64_t micro_batches : {1, 4}) {
      models::Decoder decoder = model();
      models::LoraConfig adapters;
      adapters.dropout = dropout;
      adapters.target_modules = {"all-linear"};
      if (dropout > 0) models::add_adapters(decoder, adapters, 1);
      const ChosenOptimizer optimizer = optimizer_of(decoder);
      Config config = engine(Mode::kFast);
      config.capture = Capture::kVirtual;
      Accelerated<TrainStep> step = step_of(decoder, optimizer, micro_batches, config);
      at::manual_seed(7);
      std::vector<double>& all = numbers.emplace_back();
      for (int64_t i = 0; i < 4; ++i) {
        const auto [loss, norm, skipped] = step(batch(4, i).all_rows());
        all.push_back(loss.item<double>());
        all.push_back(norm.item<double>());
      }
      generators.push_back(default_generator_of(at::kCPU).get_state());
    }
    for (size_t i = 0; i < numbers[0].size(); ++i)
      EXPECT_NEAR(numbers[1][i], numbers[0][i], error * numbers[0][i]) << compute << i;
    EXPECT_TRUE(at::equal(generators[0], generators[1])) << compute;
  }
}

}  // namespace
}  // namespace stepc::train
