// Whole runs of a small model: what a checkpoint brings back, and that replay changes nothing.
#include "train/run/trainer.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/tensors.h"
#include "cost/target_file.h"
#include "data/tokenizer_json.h"
#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"
#include "train/config/resume.h"
#include "train/model/model_directory.h"
#include "train/step/evaluate.h"

namespace stepc::train {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;

// Prose of a kind: words in an order that a small generator gives.
std::string prose(size_t bytes) {
  const std::vector<std::string> words = {"light", "and", "the", "deep", "was", "upon", "face", "of", "waters"};
  std::string text;
  uint32_t state = 1;
  while (text.size() < bytes) {
    state = state * 1664525 + 1013904223;
    text += words[(state >> 16) % words.size()] + ((state >> 28) == 0 ? ".\n" : " ");
  }
  return text;
}

// What a run may be made of; every one is resumed bit-equal.
struct Variant {
  const char* name;
  void (*apply)(RunConfig&);
};
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

class TrainerTest : public ::testing::TestWithParam<Variant> {
 public:
  TrainerTest() {
    fs::create_directory(directory_ / "model");
    models::DecoderConfig shape;
    shape.vocab_size = 257;
    shape.hidden_size = 32;
    shape.intermediate_size = 64;
    shape.num_hidden_layers = 2;
    shape.num_attention_heads = shape.num_key_value_heads = 2;
    shape.head_dim = 16;
    models::Decoder model(shape);
    model->initialize(1);
    write_model_files(directory_ / "model", shape, {{"tokenizer.json", make_byte_tokenizer_json()}},
                      model->persistent_state());
    std::ofstream(directory_ / "text.txt") << prose(20000);
    std::ofstream lines(directory_ / "lines.jsonl");
    std::ofstream chats(directory_ / "chats.jsonl");
    for (int i = 0; i < 150; ++i) {
      lines << json{{"text", prose(40 + i)}}.dump() << "\n";
      const json question = {{"role", "user"}, {"content", str("{} and the light?", i)}};
      const json answer = {{"role", "assistant"}, {"content", prose(30)}};
      chats << json{{"messages", {question, answer}}}.dump() << "\n";
    }
  }

  // Twenty steps with a checkpoint every ten, as run `name`.
  [[nodiscard]] RunConfig config(const std::string& name) const {
    RunConfig config;
    config.model.path = (directory_ / "model").string();
    config.model.compute = "float32";
    config.data.train = {(directory_ / "text.txt").string()};
    config.data.seq_len = 32;
    config.data.eval_windows = 4;
    config.data.eval_fraction = 0.1;
    config.train.steps = 20;
    config.train.batch_size = 2;
    config.train.micro_batches = 2;
    config.train.threads = 2;
    config.optim.lr = 3e-3;
    config.optim.warmup_steps = 4;
    config.output.dir = output(name).string();
    config.output.save_every = 10;
    config.output.keep_last = 5;
    config.output.log_every = 1;
    config.output.sample_tokens = 4;
    return config;
  }
  // The text, lines of it and chats, weighted, with held-out files.
  static void mix(RunConfig& config) {
    const fs::path text = config.data.train.at(0);
    const auto beside = [&](const char* name) { return text.parent_path() / name; };
    config.data.train = {text.string(), beside("lines.jsonl"), beside("chats.jsonl")};
    config.data.weights = {2, 1, 1};
    config.data.chat = "chatml";
  }
  // Lines of text, each a row of 39 to 190 tokens.
  static void bucket(RunConfig& config, std::vector<int64_t> buckets) {
    config.data.train = {fs::path(config.data.train.at(0)).parent_path() / "lines.jsonl"};
    config.data.buckets = std::move(buckets);
  }
  [[nodiscard]] fs::path output(const std::string& name) const { return directory_ / name; }

  // step -> (loss, gradient norm), held-out loss under its step as well; every step once.
  [[nodiscard]] std::map<std::string, std::vector<double>> metrics(const std::string& name) const {
    std::map<std::string, std::vector<double>> lines;
    std::ifstream file(output(name) / "metrics.jsonl");
    for (std::string text; std::getline(file, text);) {
      const json line = json::parse(text);
      const bool held_out = line.contains("held_out_loss");
      const std::string key = (held_out ? "held out " : "step ") + std::to_string(line.at("step").get<int64_t>());
      EXPECT_FALSE(lines.contains(key)) << key << " is there twice";
      lines[key] = held_out ? std::vector{line.at("held_out_loss").get<double>()}
                            : std::vector{line.at("loss").get<double>(), line.at("grad_norm").get<double>()};
    }
    return lines;
  }

  void expect_same_tensors(const fs::path& a, const fs::path& b) const {
    const NamedTensors left = load_tensors(a);
    const NamedTensors right = load_tensors(b);
    ASSERT_EQ(left.size(), right.size());
    for (size_t i = 0; i < left.size(); ++i) {
      EXPECT_EQ(left[i].first, right[i].first);
      EXPECT_TRUE(at::equal(left[i].second, right[i].second)) << left[i].first << " in " << b;
    }
  }
  void expect_same_run(const std::string& a, const std::string& b) const {
    EXPECT_EQ(metrics(a), metrics(b));
    int compared = 0;
    for (const char* file :
         {"checkpoint-000020/model.safetensors", "checkpoint-000020/adapter_model.safetensors",
          "checkpoint-000020/optimizer.safetensors", "model/model.safetensors", "model/adapter_model.safetensors"}) {
      EXPECT_EQ(fs::exists(output(a) / file), fs::exists(output(b) / file)) << file;
      if (!fs::exists(output(a) / file)) continue;
      expect_same_tensors(output(a) / file, output(b) / file);
      ++compared;
    }
    EXPECT_EQ(compared, 3);
  }

  TempDir directory_;
};

TEST_P(TrainerTest, TwentyStepsEqualTenAndTenMore) {
  RunConfig straight = config("straight");
  GetParam().apply(straight);
  ASSERT_EQ(train(straight, false), 0);

  // A run that died some steps after its checkpoint.
  fs::create_directory(output("resumed"));
  fs::copy(output("straight") / "checkpoint-000010", output("resumed") / "checkpoint-000010",
           fs::copy_options::recursive);
  fs::copy(output("straight") / "metrics.jsonl", output("resumed") / "metrics.jsonl");
  RunConfig resumed = straight;
  resumed.output.dir = output("resumed").string();
  ASSERT_EQ(train(resumed, true), 0);

  expect_same_run("straight", "resumed");
  EXPECT_EQ(metrics("straight").size(), 22U);  // and two evaluations
  EXPECT_LT(metrics("straight").at("held out 20")[0], metrics("straight").at("held out 0")[0]);
}
INSTANTIATE_TEST_SUITE_P(
    Variants, TrainerTest,
    ::testing::Values(Variant{"float32", [](RunConfig&) {}},
                      Variant{"bfloat16", [](RunConfig& config) { config.model.compute = "bfloat16"; }},
                      Variant{"float16", [](RunConfig& config) { config.model.compute = "float16"; }},
                      Variant{"float64", [](RunConfig& config) { config.model.compute = "float64"; }},
                      Variant{"exact mode", [](RunConfig& config) { config.train.mode = "exact"; }},
                      Variant{"stochastic rounding",
                              [](RunConfig& config) {
                                config.model.compute = "bfloat16";
                                config.optim.master_weights = false;
                              }},
                      Variant{"wsam on a mixture",
                              [](RunConfig& config) {
                                config.optim.name = "wsam";
                                TrainerTest::mix(config);
                              }},
                      Variant{"adapters with dropout",
                              [](RunConfig& config) {
                                config.lora.rank = 4;
                                config.lora.dropout = 0.1;
                                config.model.compute = "bfloat16";
                              }},
                      Variant{"documents in buckets",
                              [](RunConfig& config) {
                                TrainerTest::bucket(config, {128, 192});
                              }},
                      Variant{"agd with wsd", [](RunConfig& config) {
                                config.optim.name = "agd";
                                config.optim.lr = 1e-3;
                                config.optim.schedule = "wsd";
                              }}));

using TrainerRun = TrainerTest;

// Checkpoints are in the dtype that training has, whatever the model came in.
TEST_F(TrainerRun, ARunResumesThatWasSavedInAnotherDtypeThanItsModel) {
  RunConfig run = config("run");
  run.train.mode = "eager";
  run.output.save_every = 1;
  const fs::path file = directory_ / "model" / "config.json";
  models::DecoderConfig model = read_model_config(directory_ / "model");
  for (const auto& [dtype, compute, saved] :
       {std::tuple("bfloat16", "float32", "float32"), std::tuple("bfloat16", "float16", "float32"),
        std::tuple("float32", "float64", "float64"), std::tuple("float16", "bfloat16", "float32")}) {
    model.dtype = dtype;
    std::ofstream(file) << model.to_json();
    run.model.compute = compute;
    run.output.dir = output(str("{}-{}", dtype, compute)).string();
    run.train.steps = 1;
    ASSERT_EQ(train(run, false), 0);
    run.train.steps = 2;
    EXPECT_EQ(train(run, true), 0) << dtype << " in " << compute;
    EXPECT_EQ(read_model_config(fs::path(run.output.dir) / "checkpoint-000002").dtype, saved);
  }
  model.norm_eps = 1e-3;
  std::ofstream(file) << model.to_json();
  run.train.steps = 3;
  EXPECT_USER_ERROR(train(run, true), "its rms_norm_eps is 0.001, the checkpoint's 1e-06; give that model");
}

TEST_F(TrainerRun, ReplayedStepsEqualEagerSteps) {
  RunConfig exact = config("exact");
  exact.train.mode = "exact";
  ASSERT_EQ(train(exact, false), 0);
  RunConfig eager = config("eager");
  eager.train.mode = "eager";
  ASSERT_EQ(train(eager, false), 0);
  expect_same_run("exact", "eager");
}

// Rates change what budget "auto" makes again: a run goes on with those that it began with.
TEST_F(TrainerRun, AnAutomaticBudgetIsWeighedWithTheTargetOfTheCheckpoint) {
  const char* const before = std::getenv("XDG_CACHE_HOME");
  const std::string was = before == nullptr ? "" : before;
  const fs::path kernels = directory_ / "cache" / "stepc" / "kernels";
  setenv("XDG_CACHE_HOME", (directory_ / "cache").c_str(), 1);
  Target first, second;
  first.threads = second.threads = 2;
  first.rates.calls = second.rates.calls = {{"exp", DType::kF32, 1e-6, 1e9}};
  first.rates.fork_seconds = 5e-6;
  second.rates.fork_seconds = 9e-6;
  keep_target(kernels, first);
  RunConfig run = config("run");
  run.train.steps = 2;
  run.output.save_every = 1;
  run.memory.budget = "auto";
  EXPECT_EQ(train(run, false), 0);
  const std::optional<Target> weighed = saved_target(output("run") / "checkpoint-000001");
  keep_target(kernels, second);
  run.train.steps = 3;
  EXPECT_EQ(train(run, true), 0);
  RunConfig other = config("other");
  other.train.steps = 1;
  EXPECT_EQ(train(other, false), 0);
  before == nullptr ? unsetenv("XDG_CACHE_HOME") : setenv("XDG_CACHE_HOME", was.c_str(), 1);
  ASSERT_TRUE(weighed.has_value());
  EXPECT_EQ(weighed->rates, first.rates);
  EXPECT_EQ(saved_target(output("run") / "checkpoint-000003"), weighed);
  EXPECT_EQ(saved_target(output("other") / "checkpoint-000001"), std::nullopt) << "nobody asked for rates";
  std::ifstream report(output("run") / "report.html");
  const std::string page((std::istreambuf_iterator<char>(report)), {});
  EXPECT_NE(page.find("memory.budget auto: expected "), std::string::npos);
  EXPECT_NE(page.find("weighed with this machine's rates"), std::string::npos);
  EXPECT_NE(page.find("a step, predicted"), std::string::npos);
}

// The same global batch in one piece or in two: the loss is a mean over all its tokens.
TEST_F(TrainerRun, AccumulationDoesNotChangeWhatIsMinimised) {
  RunConfig whole = config("whole");
  whole.train.batch_size = 4;
  whole.train.micro_batches = 1;
  whole.train.steps = 3;
  RunConfig halves = config("halves");
  halves.train.steps = 3;
  ASSERT_EQ(train(whole, false), 0);
  ASSERT_EQ(train(halves, false), 0);
  for (const auto& [step, values] : metrics("whole")) {
    for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], metrics("halves").at(step)[i], 1e-4) << step;
  }
}

// Padding takes no part in losses and gradients, however much there is of it, in any mode.
TEST_F(TrainerRun, PaddingDoesNotChangeWhatIsMinimised) {
  RunConfig tight = config("tight");
  tight.train.steps = 6;
  tight.train.micro_batches = 1;
  bucket(tight, {128, 256});
  RunConfig wide = tight;
  wide.output.dir = output("wide").string();
  wide.data.buckets = {256};
  wide.train.mode = "eager";
  RunConfig exact = tight;
  exact.output.dir = output("exact").string();
  exact.train.mode = "exact";
  for (const RunConfig& run : {tight, wide, exact}) ASSERT_EQ(train(run, false), 0);
  for (const auto& [step, values] : metrics("wide"))
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(values[i], metrics("tight").at(step)[i], 2e-5 * std::abs(values[i])) << step;
      EXPECT_NEAR(values[i], metrics("exact").at(step)[i], 2e-5 * std::abs(values[i])) << step;
    }
}

TEST_F(TrainerRun, ALossThatIsNotANumberIsNotSaved) {
  const fs::path file = directory_ / "model/model.safetensors";
  NamedTensors weights = load_tensors(file);
  weights.front().second.fill_(std::numeric_limits<float>::infinity());
  save_tensors(file, weights);
  try {
    train(config("run"), false);
    FAIL() << "no error";
  } catch (const RunFailure& error) {
    EXPECT_NE(std::string(error.what()).find("step 1: loss"), std::string::npos) << error.what();
  }
  EXPECT_FALSE(fs::exists(output("run") / "model"));
  EXPECT_FALSE(fs::exists(output("run") / "checkpoint-000001"));
}

TEST_F(TrainerRun, OtherDataIsNotResumedOn) {
  RunConfig run = config("run");
  ASSERT_EQ(train(run, false), 0);
  EXPECT_EQ(train(run, true), 0);  // finished already
  run.train.steps = 25;
  std::ofstream(directory_ / "text.txt", std::ios::app) << "more";
  EXPECT_USER_ERROR(train(run, true), "was made with other data");
}

TEST_F(TrainerRun, AnAdapterIsTrainedAlone) {
  RunConfig run = config("run");
  run.lora.rank = 4;
  run.lora.targets = {"q_proj", "down_proj"};
  ASSERT_EQ(train(run, false), 0);
  const NamedTensors adapter = load_tensors(output("run") / "model/adapter_model.safetensors");
  EXPECT_EQ(adapter.size(), 2U * 2 * 2);
  for (const auto& [name, tensor] : adapter) EXPECT_TRUE(tensor.ne(0).any().item<bool>()) << name;
  EXPECT_FALSE(fs::exists(output("run") / "model/model.safetensors"));

  // The finished adapter is a model directory: it starts another run, of its own rank.
  RunConfig more = run;
  more.model.path = (output("run") / "model").string();
  more.output.dir = output("more").string();
  more.train.steps = 2;
  more.lora.rank = 0;
  ASSERT_EQ(train(more, false), 0);
  EXPECT_NEAR(metrics("more").at("held out 0")[0], metrics("run").at("held out 20")[0], 1e-6);
  more.lora.rank = 8;
  more.output.dir = output("other").string();
  EXPECT_USER_ERROR(train(more, false), "lora.rank = 8: the adapter in");
  run.lora.targets = {"nothing"};
  run.output.dir = output("other").string();
  EXPECT_USER_ERROR(train(run, false), "the adapter's target module \"nothing\" names no matrix");
}

TEST_F(TrainerRun, WhatIsLearnedDependsOnTheWeights) {
  RunConfig run = config("run");
  mix(run);
  run.train.steps = 3;
  ASSERT_EQ(train(run, false), 0);
  run.output.dir = output("again").string();
  ASSERT_EQ(train(run, false), 0);
  EXPECT_EQ(metrics("run"), metrics("again"));
  run.output.dir = output("other").string();
  run.data.weights = {1, 1, 2};
  ASSERT_EQ(train(run, false), 0);
  EXPECT_NE(metrics("run").at("step 3"), metrics("other").at("step 3"));
}

TEST_F(TrainerRun, HeldOutFilesAreNotTrainedOn) {
  RunConfig run = config("run");
  run.train.steps = 2;
  std::ofstream(directory_ / "held-out.txt") << prose(2000);
  run.data.eval = {(directory_ / "held-out.txt").string()};
  ASSERT_EQ(train(run, false), 0);
  run.output.dir = output("other").string();
  std::ofstream(directory_ / "held-out.txt") << prose(1500);
  ASSERT_EQ(train(run, false), 0);
  EXPECT_EQ(metrics("run").at("step 2"), metrics("other").at("step 2"));
  EXPECT_NE(metrics("run").at("held out 2"), metrics("other").at("held out 2"));
}

TEST_F(TrainerRun, AVanishedFileIsNamed) {
  RunConfig run = config("run");
  mix(run);
  run.train.steps = 2;
  ASSERT_EQ(train(run, false), 0);
  fs::remove(directory_ / "lines.jsonl");
  run.train.steps = 4;
  EXPECT_USER_ERROR(train(run, true), "lines.jsonl: No such file or directory");
}

TEST_F(TrainerRun, ADamagedShardIsMadeAgain) {
  RunConfig run = config("run");
  run.train.steps = 2;
  ASSERT_EQ(train(run, false), 0);
  for (const auto& entry : fs::directory_iterator(output("run") / "tokens"))
    if (entry.path().extension() == ".tokens") fs::resize_file(entry.path(), fs::file_size(entry) / 2);
  run.train.steps = 4;
  ASSERT_EQ(train(run, true), 0);
  EXPECT_EQ(metrics("run").size(), 7U);
}

// A damage that keeps a shard's form is found where its tokens are used.
TEST_F(TrainerRun, ATokenThatIsNoneEndsTheRun) {
  RunConfig run = config("run");
  run.train.steps = 2;
  run.data.cache = (directory_ / "cache").string();
  ASSERT_EQ(train(run, false), 0);
  for (const auto& entry : fs::directory_iterator(run.data.cache)) {
    if (entry.path().extension() != ".tokens") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    constexpr std::streamoff kTokens = 64;
    file.seekp(kTokens);
    for (int i = 0; i < 15000; ++i) file.write("\xff\xff", 2);
  }
  run.train.steps = 4;
  try {
    train(run, true);
    FAIL() << "no error";
  } catch (const UserError& error) {  // labels are looked at before the first step
    EXPECT_NE(std::string(error.what()).find("token 65535"), std::string::npos) << error.what();
  }
}

TEST_F(TrainerRun, AFinishedRunCanBeExtended) {
  RunConfig run = config("run");
  ASSERT_EQ(train(run, false), 0);
  run.train.steps = 22;
  ASSERT_EQ(train(run, true), 0);
  EXPECT_TRUE(metrics("run").contains("step 22"));
  EXPECT_TRUE(fs::exists(output("run") / "checkpoint-000022"));
}

TEST_F(TrainerRun, ADamagedCheckpointIsSkipped) {
  RunConfig run = config("run");
  ASSERT_EQ(train(run, false), 0);
  fs::copy(output("run") / "metrics.jsonl", output("run") / "before.jsonl");
  fs::remove_all(output("run") / "model");
  fs::resize_file(output("run") / "checkpoint-000020/optimizer.safetensors", 1000);
  ASSERT_EQ(train(run, true), 0);  // from step 10
  EXPECT_EQ(metrics("run").size(), 22U);
}

// From some file operation on, every change is refused. The run ends in one line, and what it had acknowledged is
// whole.
TEST_F(TrainerRun, AFileSystemThatTurnsReadOnly) {
  class TurnsReadOnly : public FileSystem {
   public:
    std::atomic<int> creations_left = 0;
    int create(const fs::path& path, int& descriptor) override {
      return creations_left-- > 0 ? FileSystem::create(path, descriptor) : EROFS;
    }
  };
  for (const int creations : {0, 3, 8, 11, 15}) {
    TurnsReadOnly files;
    files.creations_left = creations;
    RunConfig run = config(str("run-{}", creations));
    run.output.save_every = 5;
    try {
      train(run, false, files);
      FAIL() << "no error";
    } catch (const RunFailure& error) {
      EXPECT_NE(std::string(error.what()).find("Read-only file system"), std::string::npos) << error.what();
    }
    const auto found = find_latest_checkpoint(run.output.dir);
    EXPECT_EQ(found.has_value(), creations > 6) << creations;  // a checkpoint is of seven files
    EXPECT_FALSE(fs::exists(fs::path(run.output.dir) / "model"));
    ASSERT_EQ(train(run, true), 0);
    EXPECT_EQ(metrics(str("run-{}", creations)).size(), 22U);
  }
}

TEST_F(TrainerRun, TheBestCheckpointStays) {
  RunConfig run = config("run");
  run.optim.lr = 60;  // learns while it warms up, then forgets
  run.optim.warmup_steps = 1000;
  run.train.steps = 20;
  run.output.save_every = 0;
  run.output.eval_every = 2;
  run.output.keep_last = 1;
  run.output.keep_best = true;
  ASSERT_EQ(train(run, false), 0);
  double least = std::numeric_limits<double>::infinity();
  int64_t best = -1;
  for (const auto& [name, values] : metrics("run")) {
    if (!name.starts_with("held out ") || name == "held out 0" || values[0] >= least) continue;
    least = values[0];
    best = std::stoll(name.substr(9));
  }
  EXPECT_TRUE(read_checkpoint(output("run") / str("checkpoint-{:06}", best)).state.held_out.has_value());
  EXPECT_TRUE(fs::exists(output("run") / "checkpoint-000020"));
  const auto checkpoints = std::ranges::count_if(fs::directory_iterator(output("run")), [](const auto& entry) {
    return fs::exists(entry.path() / "manifest.json");
  });
  EXPECT_EQ(checkpoints, best == 20 ? 1 : 2);
}

TEST_F(TrainerRun, WeightsInSeveralFilesAreResumedFrom) {
  RunConfig run = config("one");
  ASSERT_EQ(train(run, false), 0);
  run.output.dir = output("many").string();
  run.output.max_shard_gb = 20e-6;
  run.train.steps = 10;
  ASSERT_EQ(train(run, false), 0);
  EXPECT_TRUE(fs::exists(output("many") / "checkpoint-000010/model.safetensors.index.json"));
  EXPECT_FALSE(fs::exists(output("many") / "checkpoint-000010/model.safetensors"));
  const NamedTensors many = load_model_tensors(output("many") / "model");
  EXPECT_EQ(many.size(), load_model_tensors(output("one") / "model").size());
}

}  // namespace
}  // namespace stepc::train
