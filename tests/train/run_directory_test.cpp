#include "train/run_directory.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc::train {
namespace {

TEST(RunDirectory, OneRunAtATime) {
  const TempDir directory;
  {
    const RunDirectory first(directory / "run", false);
    EXPECT_USER_ERROR(RunDirectory(directory / "run", true), "another run is writing there");
  }
  const RunDirectory next(directory / "run", false);
  EXPECT_FALSE(next.finished());
}

TEST(RunDirectory, EarlierWorkIsNotOverwritten) {
  const TempDir directory;
  {
    CheckpointWriter writer(directory.path(), {.step = 40});
    writer.commit();
  }
  EXPECT_USER_ERROR(RunDirectory(directory.path(), false),
                    "holds a run that stopped at step 40; continue it with --resume");
  EXPECT_EQ(RunDirectory(directory.path(), true).checkpoint()->state.step, 40);
  std::filesystem::create_directory(directory / "model");
  EXPECT_USER_ERROR(RunDirectory(directory.path(), false), "holds a finished run");
  EXPECT_TRUE(RunDirectory(directory.path(), true).finished());
}

TEST(RunDirectory, SaysWhyItCannotBeMade) {
  const TempDir directory;
  std::ofstream(directory / "file") << "x";
  EXPECT_USER_ERROR(RunDirectory(directory / "file", false), "cannot create");
  EXPECT_USER_ERROR(RunDirectory(directory / "file/run", false), "cannot create");
}

}  // namespace
}  // namespace stepc::train
