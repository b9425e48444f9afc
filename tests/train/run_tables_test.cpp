#include "train/report/run_tables.h"

#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "cost/profile.h"
#include "data/tokenizer_json.h"
#include "tests/temp_dir.h"
#include "train/step/evaluate.h"

namespace stepc::train {
namespace {

class RunTablesTest : public ::testing::Test {
 protected:
  RunTablesTest() {
    std::ofstream(directory_ / "text.txt") << std::string(1999, 'x');  // and the separator: 2,000 tokens
    config_.data.train = {(directory_ / "text.txt").string()};
    config_.data.weights = {1};
    config_.data.seq_len = 9;
    config_.data.eval_fraction = 0.5;
    config_.train.steps = 10;
    config_.train.batch_size = 3;
    config_.train.micro_batches = 2;
  }
  [[nodiscard]] Corpus corpus() const {
    const Tokenizer tokenizer(parse_tokenizer_json(make_byte_tokenizer_json(), "t"), "t");
    CorpusOptions options;
    for (size_t i = 0; i < config_.data.train.size(); ++i)
      options.sources.push_back({{config_.data.train[i]}, config_.data.weights[i]});
    options.seq_len = config_.data.seq_len;
    options.held_out_fraction = config_.data.eval_fraction;
    options.cache.directory = directory_ / "cache";
    return {tokenizer, options};
  }

  TempDir directory_;
  RunConfig config_;
};

TEST_F(RunTablesTest, NumbersFollowFromTheConfig) {
  const auto model = models::DecoderConfig::preset("llama-10m");
  const Corpus data = corpus();
  const RunNumbers numbers = derive_numbers(config_, model, data, {.measured = 1e12});
  EXPECT_EQ(numbers.samples_per_step, 6);
  EXPECT_EQ(numbers.tokens_per_step, 54);
  EXPECT_EQ(numbers.tokens, 540);
  EXPECT_EQ(data.train_windows(), 111U);
  EXPECT_DOUBLE_EQ(numbers.epochs, 60.0 / 111);
  EXPECT_DOUBLE_EQ(numbers.flops_per_step, model.train_flops_per_token(9) * 54);
  EXPECT_DOUBLE_EQ(numbers.least_step_seconds, numbers.flops_per_step / 1e12);
  const std::string table = start_table(config_, model, data, numbers);
  EXPECT_NE(table.find("2 micro-batches x 3 sequences x 9 tokens = 54 tokens a step"), std::string::npos) << table;
  EXPECT_NE(table.find("large matrices are multiplied at 1 TFLOP/s"), std::string::npos) << table;
}

TEST_F(RunTablesTest, OnePredictionIsToldAndNeverBelowItsBound) {
  const auto model = models::DecoderConfig::preset("llama-10m");
  const Corpus data = corpus();
  // A machine that is ten times slower than the default's.
  RunNumbers numbers = derive_numbers(config_, model, data, {.measured = 1e10, .by_default = 1e11}, /*ranks=*/2);
  EXPECT_DOUBLE_EQ(numbers.least_step_seconds, numbers.flops_per_step / 2e10);
  const double least = numbers.least_step_seconds;
  const Prediction by_default{.seconds = least, .is_calibrated = false}, too_low{.seconds = least / 100},
      calibrated{.seconds = 3 * least, .is_calibrated = true};
  EXPECT_DOUBLE_EQ(numbers.told(by_default).seconds, 10 * least);
  EXPECT_DOUBLE_EQ(numbers.told(too_low).seconds, least);
  EXPECT_DOUBLE_EQ(numbers.told(calibrated).seconds, 3 * least);
  EXPECT_DOUBLE_EQ(numbers.told({.seconds = least / 2, .is_calibrated = true}).seconds, least);
  EXPECT_DOUBLE_EQ(numbers.told({.seconds = least / 2, .is_of_card = true}).seconds, least / 2)
      << "this machine's rates";
  EXPECT_EQ(start_table(config_, model, data, numbers).find("at least"), std::string::npos);
  const std::string said = step_time_text(numbers, by_default);
  EXPECT_EQ(said, str("predicted: {} a step, at least {}; from default rates, scaled by the matmuls measured here: "
                      "`stepc calibrate` measures the rest",
                      time_text(10 * least), time_text(least)));
  EXPECT_EQ(step_time_text(numbers, std::nullopt),
            str("at least {} a step: every FLOP at the rate of a large matmul", time_text(least)));
  numbers.note_step(least / 10);  // the machine was busy when it was measured
  EXPECT_DOUBLE_EQ(numbers.told(by_default).seconds, least);
}

TEST_F(RunTablesTest, SourcesAreToldApart) {
  std::ofstream(directory_ / "more.txt") << std::string(199, 'y');
  config_.data.train.push_back((directory_ / "more.txt").string());
  config_.data.weights.push_back(3);
  const auto model = models::DecoderConfig::preset("llama-10m");
  const Corpus data = corpus();
  const RunNumbers numbers = derive_numbers(config_, model, data, {.measured = 1e12});
  EXPECT_DOUBLE_EQ(numbers.epochs, 45.0 / 11);
  const std::string table = start_table(config_, model, data, numbers);
  EXPECT_NE(table.find("more.txt: weight 3, 4.09 epochs"), std::string::npos) << table;
}

TEST_F(RunTablesTest, EndTableSetsBeforeBesideAfter) {
  const std::string table =
      end_table({.steps = 10, .seconds = 61, .step_seconds = 0.5, .held_out_before = 5.7, .held_out_after = 1.6},
                {.least_step_seconds = 0.1});
  EXPECT_NE(table.find("MFU 20 %"), std::string::npos) << table;
  EXPECT_NE(table.find("5.7000       1.6000"), std::string::npos) << table;
}

// The rate of large matrices is measured once; a step that beats it shows that it was too low.
TEST_F(RunTablesTest, NoStepIsAboveTheBestRate) {
  RunNumbers numbers = {.flops_per_step = 1e9, .matmul_flops_rate = 1e10, .least_step_seconds = 0.1};
  numbers.note_step(0.2);
  EXPECT_DOUBLE_EQ(numbers.mfu(0.2), 0.5);
  EXPECT_FALSE(numbers.rate_is_of_a_step);
  EXPECT_NE(end_table({.step_seconds = 0.2}, numbers).find("at best: every FLOP at the matmul rate, MFU 50 %"),
            std::string::npos);
  EXPECT_DOUBLE_EQ(numbers.mfu(0.05), 1);
  numbers.note_step(0.05);
  EXPECT_DOUBLE_EQ(numbers.matmul_flops_rate, 2e10);
  EXPECT_DOUBLE_EQ(numbers.mfu(0.1), 0.5);
  EXPECT_NE(
      end_table({.step_seconds = 0.1}, numbers).find("at best: the fastest step, above the matmul rate, MFU 50 %"),
      std::string::npos);
}

TEST_F(RunTablesTest, WithoutEvaluationThereIsNoLossToShow) {
  EXPECT_EQ(end_table({.steps = 10}, {.least_step_seconds = 0.1}).find("held-out"), std::string::npos);
}

TEST(Evaluate, WindowsAreSpreadEvenly) {
  EXPECT_EQ(spread_windows(10, 3), (std::vector<int64_t>{0, 3, 6}));
  EXPECT_EQ(spread_windows(2, 5), (std::vector<int64_t>{0, 1}));
}

}  // namespace
}  // namespace stepc::train
