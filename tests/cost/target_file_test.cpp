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
  const Rates measured{.calls = {{"exp", DType::kF32, 1e-6, 1e9}}};
  Target two{.threads = 2, .rates = measured}, one{.threads = 1, .rates = measured};
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

TEST(TargetFile, OneOfAnOlderVersionOrCutShortIsMeasuredAgain) {
  const TempDir directory;
  const std::string text = to_text(Target{.threads = 2, .rates = {.calls = {{"exp", DType::kF32, 1e-6, 1e9}}}});
  for (const std::string_view from : {"[[matmuls]]", "[[convolutions]]", "[[calls]]"}) {
    std::ofstream(target_file(directory.path(), 2)) << text.substr(0, text.rfind(from));
    EXPECT_USER_ERROR((void)kept_target(directory.path(), 2), "measure again with `stepc calibrate`");
  }
  EXPECT_USER_ERROR((void)kept_target(directory.path(), 2),
                    "target: calls is missing: an older version's, or the file is cut short; measure again");
}

TEST(TargetFile, OneProcessMeasuresAtATime) {
  const TempDir directory;
  {
    const MeasuringHere here(directory.path() / "new", 2);
    EXPECT_USER_ERROR(MeasuringHere(directory.path() / "new", 4), "another calibration runs for this directory");
  }
  const MeasuringHere again(directory.path() / "new", 2);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path() / "new"));
  std::ofstream(directory.path() / "file") << "x";
  EXPECT_USER_ERROR(MeasuringHere(directory.path() / "file", 2), "file");
}

}  // namespace
}  // namespace stepc
