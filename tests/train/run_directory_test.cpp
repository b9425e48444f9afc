#include "train/run/run_directory.h"

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

TEST(RunDirectory, WhatTheSameLaunchLeftIsResumed) {
  const TempDir directory;
  { const RunDirectory first(directory.path(), false, "job7"); }
  CheckpointWriter(directory.path(), {.step = 40}).commit();
  EXPECT_EQ(RunDirectory(directory.path(), false, "job7").checkpoint()->state.step, 40);
  for (const char* other : {"job8", ""})
    EXPECT_USER_ERROR(RunDirectory(directory.path(), false, other), "holds a run that stopped at step 40");
  { const RunDirectory asked(directory.path(), true, "job8"); }
  EXPECT_EQ(RunDirectory(directory.path(), false, "job8").checkpoint()->state.step, 40);
  { const RunDirectory by_hand(directory.path(), true); }
  EXPECT_USER_ERROR(RunDirectory(directory.path(), false, "job8"), "holds a run that stopped at step 40");
}

TEST(RunDirectory, WhatWouldBeReplacedIsRefused) {
  const TempDir directory;
  const auto write = [&](int64_t step) { return CheckpointWriter(directory.path(), {.step = step}).commit(); };
  std::filesystem::create_directory(directory / "checkpoint-000002");
  for (const bool resume : {false, true})
    EXPECT_USER_ERROR(RunDirectory(directory.path(), resume), "what is there for step 2 is not stepc's own");
  write(3);
  EXPECT_EQ(RunDirectory(directory.path(), true).checkpoint()->state.step, 3);  // past it
}

TEST(RunDirectory, DamagedCheckpointsAreNotStartedOver) {
  const TempDir directory;
  const auto checkpoint = CheckpointWriter(directory.path(), {.step = 3}).commit();
  std::ofstream(checkpoint / "trainer_state.json", std::ios::app) << "x";
  for (const bool resume : {false, true})
    EXPECT_USER_ERROR(RunDirectory(directory.path(), resume), "no checkpoint in it is whole");
  EXPECT_TRUE(std::filesystem::exists(checkpoint));
}

TEST(RunDirectory, AModelWithoutACheckpointIsKept) {
  const TempDir directory;
  std::filesystem::create_directory(directory / "model");
  EXPECT_USER_ERROR(RunDirectory(directory.path(), true), "holds model, but no checkpoint to continue from");
}

TEST(RunDirectory, SaysWhyItCannotBeMade) {
  const TempDir directory;
  std::ofstream(directory / "file") << "x";
  EXPECT_USER_ERROR(RunDirectory(directory / "file", false), "cannot create");
  EXPECT_USER_ERROR(RunDirectory(directory / "file/run", false), "cannot create");
}

}  // namespace
}  // namespace stepc::train
