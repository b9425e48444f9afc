// A process is killed at any moment of writing a part, by refusing all that it does from there on: what was whole
// stays.
#include "checkpoint/part_slots.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include <gtest/gtest.h>

#include "base/check.h"
#include "base/files.h"
#include "checkpoint/checkpoint.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

namespace fs = std::filesystem;

// Of a process that does so many things, and is killed in the middle of the next one.
class MortalFiles : public UnsyncedFiles {
 public:
  explicit MortalFiles(size_t lives) : lives_(lives) {}
  [[nodiscard]] bool is_dead() const { return done_ > lives_; }
  bool dies() { return ++done_ > lives_; }

  int create(const fs::path& path, int& descriptor) override {
    return dies() ? EIO : FileSystem::create(path, descriptor);
  }
  int write(int descriptor, std::span<const std::byte> bytes) override {
    if (!dies()) return FileSystem::write(descriptor, bytes);
    if (done_ == lives_ + 1) FileSystem::write(descriptor, bytes.first(bytes.size() / 2));
    return EIO;
  }
  int rename(const fs::path& from, const fs::path& to) override { return dies() ? EIO : FileSystem::rename(from, to); }
  int unlink(const fs::path& path) override { return dies() ? EIO : FileSystem::unlink(path); }
  int make_directory(const fs::path& path) override { return dies() ? EIO : FileSystem::make_directory(path); }
  int remove_directory(const fs::path& path) override { return dies() ? EIO : FileSystem::remove_directory(path); }

 private:
  size_t lives_, done_ = 0;
};

class PartSlotsTest : public ::testing::Test {
 protected:
  static constexpr int64_t kSteps = 4;

  static std::string content(int64_t step, int file) {
    return str("{} {} {}", step, file, std::string(static_cast<size_t>(40 + (file == 0 ? step % 3 : 0)), 'x'));
  }
  // Snapshots one after the other, until it is killed; the last that was finished.
  static int64_t live(MortalFiles& files, const fs::path& memory) {
    int64_t finished = 0;
    try {
      SnapshotStore store(memory, "out", &files);
      PartSlots slots(store, 0, [&](std::byte* to, std::span<const std::byte> from) {
        const bool dies = files.dies();
        std::memcpy(to, from.data(), dies ? from.size() / 2 : from.size());
        USER_CHECK(!dies, "killed");
      });
      for (int64_t step = 1; step <= kSteps; ++step) {
        const fs::path& directory = slots.begin(SnapshotStore::name_of(step, 7));
        for (int file = 0; file < 2; ++file)
          write_file_synced(directory / str("file-{}", file), content(step, file), slots.files());
        if (step == 2) write_file_synced(directory / "more", std::string("x"), slots.files());
        slots.files().end();
        slots.finish(make_manifest(directory, step));
        finished = step;
        if (step == 1) slots.make_other();
      }
    } catch (const UserError&) {
      EXPECT_TRUE(files.is_dead());
    }
    return finished;
  }
};

TEST_F(PartSlotsTest, AKilledWriterLeavesTheOlder) {
  bool is_dead = true;
  size_t lives = 0;
  for (; is_dead && !HasFailure(); ++lives) {
    const TempDir memory;
    SnapshotStore(memory.path(), "out").claim("a run");
    MortalFiles files(lives);
    const int64_t finished = live(files, memory.path());
    is_dead = files.is_dead();
    const SnapshotStore store(memory.path(), "out");
    std::optional<SnapshotStore::Part> newest;
    for (const SnapshotStore::Part& part : store.parts()) {
      EXPECT_TRUE(store.is_intact(part)) << "a part that counts is whole: killed at " << lives;
      newest = part;
    }
    ASSERT_EQ(newest.has_value(), finished > 0 || newest) << lives;
    EXPECT_GE(newest ? newest->manifest.step : 0, finished) << "killed at " << lives;
    if (!newest) continue;
    EXPECT_LE(newest->manifest.step, finished + 1);
    EXPECT_EQ(newest->manifest.files.size(), newest->manifest.step == 2 ? 3U : 2U);
    for (int file = 0; file < 2; ++file)
      EXPECT_EQ(read_text(store.part(newest->snapshot, 0) / str("file-{}", file), 999),
                content(newest->manifest.step, file));
    // Two places, whoever is killed when.
    size_t places = 0;
    for (const auto& entry : fs::recursive_directory_iterator(store.path()))
      if (entry.path().filename() == "file-0") ++places;
    EXPECT_LE(places, 2U);
  }
  EXPECT_GT(lives, 30U);
}

}  // namespace
}  // namespace stepc
