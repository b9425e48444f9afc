#include "checkpoint/background_saver.h"

#include <atomic>
#include <cerrno>
#include <future>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "base/files.h"
#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

void write_weights(const std::filesystem::path& directory, FileSystem& files) {
  write_file_synced(directory / "model.safetensors", "weights", files);
}

TEST(BackgroundSaver, SavesWhileTheCallerGoesOn) {
  const TempDir dir;
  BackgroundSaver saver(dir.path());
  EXPECT_FALSE(saver.poll().has_value());
  EXPECT_FALSE(saver.wait().has_value());

  std::promise<void> go;
  saver.begin({.step = 7}, {}, [&](const auto& directory, FileSystem& files) {
    go.get_future().wait();
    write_weights(directory, files);
  });
  EXPECT_TRUE(saver.in_flight());
  EXPECT_FALSE(saver.poll().has_value());  // not acknowledged before it is durable
  EXPECT_FALSE(find_latest_checkpoint(dir.path()).has_value());
  go.set_value();
  const auto saved = saver.wait();
  ASSERT_TRUE(saved.has_value());
  EXPECT_EQ(saved->step, 7);
  EXPECT_EQ(saved->directory, dir / "checkpoint-000007");
  EXPECT_GT(saved->bytes, 7U);
  EXPECT_FALSE(saver.in_flight());
  EXPECT_EQ(find_latest_checkpoint(dir.path())->state.step, 7);
}

TEST(BackgroundSaver, ThrowsWhatWentWrongAndSavesAgain) {
  class FullDisk : public FileSystem {
   public:
    std::atomic<bool> full = true;
    int write(int descriptor, std::span<const std::byte> bytes) override {
      return full ? ENOSPC : FileSystem::write(descriptor, bytes);
    }
  };
  const TempDir dir;
  FullDisk files;
  BackgroundSaver saver(dir.path(), files);
  saver.begin({.step = 1}, {}, write_weights);
  EXPECT_USER_ERROR(saver.wait(), "No space left on device");
  EXPECT_FALSE(saver.poll().has_value());
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  files.full = false;
  saver.begin({.step = 2}, {}, write_weights);
  EXPECT_EQ(saver.wait()->step, 2);
}

TEST(BackgroundSaver, TheDestructorWaits) {
  const TempDir dir;
  {
    BackgroundSaver saver(dir.path());
    saver.begin({.step = 3}, {}, write_weights);
  }
  EXPECT_EQ(find_latest_checkpoint(dir.path())->state.step, 3);
}

TEST(BackgroundSaver, RemovesWhatNeedNotStay) {
  const TempDir dir;
  BackgroundSaver saver(dir.path());
  const double losses[] = {3.0, 2.0, 1.0, 1.5, 1.6, 1.7};
  for (int64_t step = 1; step <= 6; ++step) {
    saver.begin({.step = step, .held_out = losses[step - 1]}, {.last = 1, .every = 4, .best = true}, write_weights);
    saver.wait();
  }
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"checkpoint-000003", "checkpoint-000004", "checkpoint-000006"}));
}

}  // namespace
}  // namespace stepc
