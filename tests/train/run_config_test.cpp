#include "train/config/run_config.h"

#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"
#include "train/config/run_config_keys.h"

namespace stepc::train {
namespace {

constexpr const char* kLeast = "[model]\npath = 'm'\n[data]\ntrain = ['a.txt']\n[output]\ndir = 'out'\n";

class RunConfigTest : public ::testing::Test {
 protected:
  RunConfig load(const std::string& text, const std::vector<Override>& overrides = {}) {
    std::ofstream(path()) << text;
    return load_run_config(path(), overrides);
  }
  RunConfig load_with(const Override& override) { return load(kLeast, {override}); }
  [[nodiscard]] std::string path() const { return (directory_ / "run.toml").string(); }

 private:
  TempDir directory_;
};

TEST_F(RunConfigTest, KeepsDefaultsAndTakesValues) {
  const RunConfig config = load(str("{}[train]\nsteps = 7\n[optim]\nlr = 1\nbetas = [0, 0.5]\n", kLeast));
  EXPECT_EQ(config.model.path, "m");
  EXPECT_EQ(config.data.train, std::vector<std::string>{"a.txt"});
  EXPECT_EQ(config.train.steps, 7);
  EXPECT_EQ(config.optim.lr, 1.0);  // an integer is a number
  EXPECT_EQ(config.optim.betas[1], 0.5);
  EXPECT_EQ(config.train.batch_size, RunConfig().train.batch_size);
}

TEST_F(RunConfigTest, OverridesReplaceTheFile) {
  const RunConfig config = load(kLeast, {{"train.steps", "12"},
                                         {"optim.lr", "3e-4"},
                                         {"model.path", "123"},
                                         {"data.train", "['b.txt', 'c.txt']"},
                                         {"output.dir", "runs/x y"}});
  EXPECT_EQ(config.train.steps, 12);
  EXPECT_EQ(config.optim.lr, 3e-4);
  EXPECT_EQ(config.model.path, "123");
  EXPECT_EQ(config.data.train, (std::vector<std::string>{"b.txt", "c.txt"}));
  EXPECT_EQ(config.output.dir, "runs/x y");
  EXPECT_EQ(load_with({"data.train", "d.txt"}).data.train, std::vector<std::string>{"d.txt"});
}

TEST_F(RunConfigTest, BucketsAreAscendingWholeNumbers) {
  const RunConfig config = load_with({"data.buckets", "[64, 128]"});
  EXPECT_EQ(config.data.buckets, (std::vector<int64_t>{64, 128}));
  EXPECT_EQ(config.data.longest_row(), 128);
  EXPECT_EQ(load(to_toml(config)).data.buckets, config.data.buckets);
  EXPECT_EQ(load(kLeast).data.longest_row(), 256);
  EXPECT_USER_ERROR(load_with({"data.buckets", "[64, 128, 128]"}),
                    "data.buckets = [64, 128, 128]: 128 does not come behind 128; give them in ascending order");
  for (const char* wrong : {"[0, 64]", "[64.5]", "64", "['64']"})
    EXPECT_USER_ERROR(load_with({"data.buckets", wrong}), "data.buckets: must be a list of integers, at least 2");
  EXPECT_EQ(
      without_effect(load(str("{}[train]\nsteps = 7\n", kLeast), {{"data.buckets", "[64]"}, {"data.seq_len", "32"}})),
      std::vector<std::string>{"data.seq_len = 32 has no effect: data.buckets says how long rows are"});
}

TEST_F(RunConfigTest, ParallelIsATableOfAxesAndRules) {
  const RunConfig config = load(str(R"({}
[parallel]
dp_shard = 4
tp = 2
zero = 2
[[parallel.shard]]
param = "*.q_proj.weight"
dims = {{0 = "tp"}}
[[parallel.shard]]
param = "lm_head.weight"
dims = {{0 = "tp", 1 = "dp_shard"}}
)",
                                    kLeast));
  const std::vector<ShardRule> rules = {{"*.q_proj.weight", {{0, "tp"}}},
                                        {"lm_head.weight", {{0, "tp"}, {1, "dp_shard"}}}};
  EXPECT_EQ(config.parallel.shard, rules);
  EXPECT_EQ(load(to_toml(config)).parallel.shard, rules);
  EXPECT_EQ(load(to_toml(config)).parallel.zero, 2);
  EXPECT_TRUE(load(to_toml(load(kLeast))).parallel.shard.empty());
  for (const char* wrong : {R"([{param = "x"}])", R"([{param = "x", dims = {}}])", R"([{param = "x", dims = {0 = 1}}])",
                            R"([{param = "x", dims = {a = "tp"}}])", R"([{dims = {0 = "tp"}, name = "x"}])", "['x']"})
    EXPECT_USER_ERROR(load_with({"parallel.shard", wrong}),
                      "parallel.shard: must be a list of tables {param = \"*.q_proj.weight\", dims = {0 = \"tp\"}}");
}

TEST_F(RunConfigTest, NamesOfOthersAreAnsweredWithOurs) {
  for (const auto& [theirs, ours] :
       std::vector<std::pair<std::string, std::string>>{{"parallel.data_parallel_shard_degree", "dp_shard"},
                                                        {"parallelism.data_parallel_replicate_degree", "dp_replicate"},
                                                        {"parallel.context_parallel_degree", "cp"},
                                                        {"train.fsdp_size", "dp_shard"},
                                                        {"parallel.tp_size", "tp"},
                                                        {"parallel.pipeline_parallel_degree", "pp"},
                                                        {"optim.zero_stage", "zero"},
                                                        {"train.world_size", "ranks"}})
    EXPECT_USER_ERROR(load_with({theirs, "2"}), str("unknown key {}; here it is parallel.{}: ", theirs, ours));
  EXPECT_USER_ERROR(load(str("{}[zero_optimization]\nstage = 2\n", kLeast)),
                    ":7: unknown section [zero_optimization]; here it is parallel.zero: ");
  EXPECT_USER_ERROR(load_with({"train.grad_accum", "2"}),
                    "unknown key train.grad_accum; here it is train.micro_batches: ");
  EXPECT_USER_ERROR(load_with({"parallel.expert_parallel_degree", "2"}), "there is no expert parallelism yet");
}

TEST_F(RunConfigTest, WhatActsAlongAnAxisWithOneRankHasNoEffect) {
  EXPECT_EQ(without_effect(load_with({"parallel.zero", "1"})),
            std::vector<std::string>{"parallel.zero = 1 has no effect: parallel.dp_shard and parallel.cp are 1"});
  EXPECT_EQ(without_effect(load_with({"parallel.sequence_parallel", "false"})),
            std::vector<std::string>{"parallel.sequence_parallel = false has no effect: parallel.tp is 1"});
  EXPECT_EQ(without_effect(load_with({"parallel.context", "heads"})),
            std::vector<std::string>{"parallel.context = \"heads\" has no effect: parallel.cp is 1"});
  EXPECT_EQ(without_effect(load_with({"parallel.order", "gpipe"})),
            std::vector<std::string>{"parallel.order = \"gpipe\" has no effect: parallel.pp is 1"});
  EXPECT_EQ(without_effect(load_with({"parallel.chunks", "2"})),
            std::vector<std::string>{"parallel.chunks = 2 has no effect: parallel.pp is 1"});
  EXPECT_EQ(without_effect(load_with({"parallel.stages", "[\"layers.0\"]"})),
            std::vector<std::string>{"parallel.stages has no effect: parallel.pp is 1"});
}

TEST_F(RunConfigTest, ReplaysAreComparedAsAsked) {
  EXPECT_EQ(load(kLeast).train.verify, "first");
  for (const char* right : {"off", "first", "always", "every:1", "every:100"})
    EXPECT_EQ(load_with({"train.verify", right}).train.verify, right);
  for (const char* wrong : {"every:0", "every:N", "every:-1", "every:2x", "sometimes"})
    EXPECT_USER_ERROR(load_with({"train.verify", wrong}),
                      str("--train.verify={}: train.verify: must be one of first, every:N, always, off", wrong));
}

TEST_F(RunConfigTest, KeysOfOtherOptimizersAreNamed) {
  const auto lines = [&](const std::string& optim) { return without_effect(load(kLeast + ("[optim]\n" + optim))); };
  EXPECT_EQ(
      lines("name = 'adamw'\nmomentum = 0.5\neps = 1e-6"),
      std::vector<std::string>{"optim.momentum = 0.5 has no effect: optim.name is \"adamw\", and the key is for sgd"});
  EXPECT_EQ(lines("name = 'lion'\neps = 1e-6\nwsam_rho = 0.1\nbetas = [0.9, 0.99]").size(), 2U);
  EXPECT_TRUE(lines("name = 'sgd'\nmomentum = 0.5\nnesterov = true\nlr = 0.1").empty());
  EXPECT_TRUE(lines("name = 'wsam'\nwsam_rho = 0.1\nwsam_gamma = 0.5\neps = 1e-6").empty());
  // A file with every default in it is what a run keeps of its config.
  EXPECT_TRUE(without_effect(load(to_toml(load(kLeast)))).empty());
}

TEST_F(RunConfigTest, UnknownKeysNameTheLineAndTheNearestKey) {
  EXPECT_USER_ERROR(load(str("{}[train]\nstep = 7\n", kLeast)),
                    path() + ":8: unknown key train.step = 7; did you mean train.steps?");
  EXPECT_USER_ERROR(load(str("{}[train]\nzebra = 'striped'\n", kLeast)),
                    ":8: unknown key train.zebra = 'striped'; [train] has steps, batch_size, micro_batches, seed, "
                    "threads, device, device_kernels, mode, precision, fp8_recipe, capture, verify");
  EXPECT_USER_ERROR(load(str("{}[trian]\nsteps = 7\n", kLeast)), ":7: unknown section [trian]; did you mean [train]?");
  EXPECT_USER_ERROR(load(str("steps = 7\n{}", kLeast)), ":1: unknown key steps = 7; did you mean steps in [train]?");
  EXPECT_USER_ERROR(load_with({"optim.lrr", "1"}), "--optim.lrr=1: unknown key optim.lrr; did you mean optim.lr?");
}

TEST_F(RunConfigTest, WrongTypesAndRangesSayWhatIsAllowed) {
  EXPECT_USER_ERROR(load(str("{}[train]\nsteps = 'ten'\n", kLeast)),
                    ":8: train.steps = 'ten': must be an integer, at least 1, at most 1000000000");
  EXPECT_USER_ERROR(load(str("{}[train]\nsteps = 1.0\n", kLeast)), ":8: train.steps = 1.0: must be an integer");
  EXPECT_USER_ERROR(load(str("{}[train]\nsteps = 0\n", kLeast)), ":8: train.steps = 0: must be");
  EXPECT_USER_ERROR(load(str("{}[train]\nmode = 'turbo'\n", kLeast)),
                    ":8: train.mode = 'turbo': must be one of fast, exact, eager");
  EXPECT_USER_ERROR(load_with({"optim.lr", "0"}), "--optim.lr=0: optim.lr: must be a number, above 0, at most 10");
  EXPECT_USER_ERROR(load_with({"optim.lr", "nan"}), "must be a number");
  EXPECT_USER_ERROR(load_with({"optim.lr", "2 * 3"}), "must be a number");
  EXPECT_USER_ERROR(load_with({"optim.betas", "[0.9, 1.0]"}), "must be two numbers, at least 0, below 1");
  EXPECT_USER_ERROR(load_with({"optim.betas", "[0.9]"}), "must be two numbers");
  EXPECT_USER_ERROR(load_with({"output.dir", ""}), "must be a text, not empty");
  EXPECT_USER_ERROR(load(str("{}[train]\nseed = 1979-05-27\n", kLeast)), "train.seed = 1979-05-27: must be");
}

TEST_F(RunConfigTest, MissingKeysAndBrokenFiles) {
  EXPECT_USER_ERROR(load("[model]\npath = 'm'\n"), "run.toml: data.train is missing: files (.txt, .jsonl, .parquet)");
  EXPECT_USER_ERROR(load("[model]\npath = \n"), "run.toml:2: not TOML: ");
  EXPECT_USER_ERROR(load("[optim]\nnesterov = tr\n"), "expected 'true', saw 'tr '");  // one line
  EXPECT_USER_ERROR(load("[model]\npath = 'm'\npath = 'n'\n"), "run.toml:3: not TOML: ");
  EXPECT_USER_ERROR(load_run_config("/nowhere/run.toml", {}),
                    "cannot open /nowhere/run.toml: No such file or directory");
}

// Every key can be printed, read back, and has a default that it allows itself.
TEST_F(RunConfigTest, PrintsAConfigThatReadsBack) {
  RunConfig config = load(kLeast, {{"output.dir", "a \"b\" \\ c"}, {"optim.lr", "0.1"}, {"optim.eps", "1e-9"}});
  const RunConfig again = load(to_toml(config));
  EXPECT_EQ(to_toml(again), to_toml(config));
  EXPECT_EQ(again.output.dir, "a \"b\" \\ c");
  for (const Key& key : run_config_keys()) EXPECT_NE(keys_help().find("  " + bare_name(key)), std::string::npos);
}

}  // namespace
}  // namespace stepc::train
