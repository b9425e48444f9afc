#include "train/config/resume.h"

#include <fstream>

#include <gtest/gtest.h>

#include "base/files.h"
#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc::train {
namespace {

RunConfig some_config() {
  RunConfig config;
  config.model.path = "m";
  config.data.train = {"a.txt"};
  config.output.dir = "out";
  return config;
}

TEST(Resume, ChangesAreToldAndTheDataOrderIsFixed) {
  const TempDir directory;
  RunConfig config = some_config();
  save_run_config(directory.path(), config);
  EXPECT_TRUE(check_resumed_config(directory.path(), config).empty());

  config.output.dir = "elsewhere";
  config.optim.lr = 2e-3;
  EXPECT_EQ(check_resumed_config(directory.path(), config), std::vector<std::string>{"optim.lr = 0.002 (was 0.001)"});

  config.train.batch_size = 3;
  EXPECT_USER_ERROR(check_resumed_config(directory.path(), config),
                    "train.batch_size = 3: the checkpoint to resume from has 8");
}

// Of a version that named keys otherwise.
TEST(Resume, FormerNamesOfKeysAreRead) {
  const TempDir directory;
  RunConfig config = some_config();
  config.train.micro_batches = 4;
  save_run_config(directory.path(), config);
  const auto path = directory.path() / "run.toml";
  std::string text = read_text(path, 1 << 20);
  const std::string now = "micro_batches", then = "grad_accum";
  ASSERT_NE(text.find(now), std::string::npos);
  text.replace(text.find(now), now.size(), then);
  std::ofstream(path) << text;
  EXPECT_EQ(saved_run_config(directory.path()).train.micro_batches, 4);
  EXPECT_TRUE(check_resumed_config(directory.path(), config).empty());
  EXPECT_USER_ERROR(load_run_config(path.string(), {}),
                    "unknown key train.grad_accum = 4; here it is train.micro_batches");
}

TEST(Resume, TheTargetOfThePlanComesBack) {
  const TempDir directory;
  EXPECT_EQ(saved_target(directory.path()), std::nullopt);
  Target target;
  target.threads = 3;
  target.features.bf16 = true;
  target.bytes_per_second = 1.0 / 3 * 1e10;
  target.rates.fork_seconds = 7e-6;
  save_target(directory.path(), target);
  EXPECT_EQ(saved_target(directory.path()), target);
  std::ofstream(directory.path() / "target.toml") << "threads = 3\nfeatures = []\nbytes_per_second = 0\n";
  EXPECT_USER_ERROR(saved_target(directory.path()),
                    "target.toml: target, line 3: bytes_per_second = 0: must be a number");
}

}  // namespace
}  // namespace stepc::train
