#include "train/config/resume.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace stepc::train
