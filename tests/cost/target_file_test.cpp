// A measured Target beside the kernels.
#include "cost/target_file.h"

#include <fstream>

#include <gtest/gtest.h>

#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

TEST(TargetFile, KeepsOneAThreadCountAndReadsItBack) {
  const TempDir directory;
  EXPECT_EQ(kept_target(directory.path(), 2), std::nullopt);
  EXPECT_EQ(kept_target({}, 2), std::nullopt) << "no directory, no file";
  Target two{.threads = 2}, one{.threads = 1};
  two.rates.fork_seconds = 1e-5;
  keep_target(directory.path() / "new", two);
  keep_target(directory.path() / "new", one);
  EXPECT_EQ(kept_target(directory.path() / "new", 2), two);
  EXPECT_EQ(kept_target(directory.path() / "new", 1), one);
  EXPECT_EQ(target_file(directory.path(), 1).filename(), "target-1-thread.toml");
}

TEST(TargetFile, ADamagedOneIsNamedWithWhatToDo) {
  const TempDir directory;
  std::ofstream(target_file(directory.path(), 2)) << "threads = 2\nfeatures = []\n[rates]\nfork_seconds = -1\n";
  EXPECT_USER_ERROR((void)kept_target(directory.path(), 2), "target-2-threads.toml: target, line 4: fork_seconds = -1");
  EXPECT_USER_ERROR((void)kept_target(directory.path(), 2), "measure again with `stepc calibrate`");
  std::ofstream(target_file(directory.path(), 4)) << "threads = 2\nfeatures = []\n";
  EXPECT_USER_ERROR((void)kept_target(directory.path(), 4),
                    "target-4-threads.toml: target: threads = 2, where the file's name says 4; measure again");
}

}  // namespace
}  // namespace stepc
