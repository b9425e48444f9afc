// The machine goes down at every operation of saving and pruning: whatever it wakes up with, the newest checkpoint
// whose save was acknowledged, or a newer one, is found whole, and nothing half-written has a checkpoint's name.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/sharing_files.h"
#include "tests/checkpoint/crash_model.h"
#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

namespace fs = std::filesystem;

// In memory where there is such a place: the many small files would keep a disk busy.
class CrashTest : public ::testing::Test {
 protected:
  CrashTest() {
    static const bool kInMemory = ::access("/dev/shm", W_OK) == 0;
    std::string name = ((kInMemory ? fs::path("/dev/shm") : fs::temp_directory_path()) / "stepc-test-XXXXXX").string();
    base_ = ::mkdtemp(name.data());
    fs::create_directory(output());
    log().set_level(spdlog::level::off);  // a crash's victims are warned of ten thousand times
  }
  ~CrashTest() override {
    log().set_level(spdlog::level::info);
    std::error_code ignored;
    fs::remove_all(base_, ignored);
  }
  CrashTest(const CrashTest&) = delete;
  CrashTest& operator=(const CrashTest&) = delete;

  [[nodiscard]] fs::path output() const { return base_ / "out"; }
  [[nodiscard]] fs::path woken() const { return base_ / "woken"; }

  // What a checkpoint of this step has in its shard `shard`; `save` makes the second save of a step differ.
  static std::string content(int64_t step, int shard, int save) {
    return str("{} {} {} {}", step, shard, save, std::string(static_cast<size_t>(step * 7 % 40 + shard), 'x'));
  }
  void save(int64_t step, int save, FileSystem& files) const {
    CheckpointWriter writer(output(), {.step = step, .next_sample = save}, files);
    SharingFiles sharing(files, newest_directory(output()), /*least_bytes=*/0);
    for (int shard = 0; shard < 2; ++shard) {
      FileWriter file(writer.path() / str("model-{}.safetensors", shard), sharing);
      file.write("header");
      file.write(content(step, shard, save));
      file.commit();
    }
    write_file_synced(writer.path() / "config.json", "{}", sharing);
    writer.commit();
  }
  static void expect_content(const Checkpoint& found) {
    for (int shard = 0; shard < 2; ++shard) {
      const std::string text = read_text(found.directory / str("model-{}.safetensors", shard), 1000);
      EXPECT_EQ(text, "header" + content(found.state.step, shard, static_cast<int>(found.state.next_sample)));
    }
  }
  // Whatever has a checkpoint's name in the woken machine's directory must be one.
  void expect_no_half_checkpoint() const {
    for (const auto& entry : fs::directory_iterator(woken())) {
      const std::string name = entry.path().filename();
      if (name.find(".tmp-") != std::string::npos) continue;
      EXPECT_NO_THROW(read_checkpoint(entry.path())) << name;
    }
  }

  fs::path base_;
};

// A run's life: saves, some of a step that is there already, each followed by a pruning.
struct Life {
  std::vector<int64_t> steps;
  Retention retention;
  bool can_exchange = true;
};

class CrashAtEveryOperation : public CrashTest {
 protected:
  // Returns how many different states were looked at.
  size_t live_and_crash(const Life& life, size_t most_states, uint32_t seed) {
    JournalledFiles files;
    files.can_exchange = life.can_exchange;
    std::vector<std::pair<size_t, int64_t>> acknowledged;  // operations done when a save of this step had returned
    int saves = 0;
    for (const int64_t step : life.steps) {
      save(step, ++saves, files);
      acknowledged.emplace_back(files.journal.size(), step);
      prune_checkpoints(output(), life.retention, files);
    }

    std::mt19937 random(seed);
    DiskStates disk(output());
    std::map<DiskStates::Tree, int64_t> seen;  // and the step that is found there, -1: none
    for (size_t done = 0; done <= files.journal.size() && !HasFailure(); ++done) {
      if (done > 0) disk.apply(files.journal[done - 1]);
      int64_t newest = -1;
      for (const auto& [operations, step] : acknowledged)
        if (operations <= done) newest = std::max(newest, step);
      for (const auto& tree : disk.after_crash(most_states, random)) {
        const auto [state, is_new] = seen.try_emplace(tree, -1);
        if (is_new) state->second = wake_up(tree);
        EXPECT_GE(state->second, newest) << "after operation " << done;
        if (HasFailure()) break;
      }
    }
    return seen.size();
  }

  // The step of the checkpoint that a run would resume from, -1 where there is none.
  int64_t wake_up(const DiskStates::Tree& tree) const {
    materialize(tree, woken());
    expect_no_half_checkpoint();
    const auto found = find_latest_checkpoint(woken());
    if (!found) return -1;
    expect_content(*found);
    return found->state.step;
  }
};

TEST_F(CrashAtEveryOperation, NoAcknowledgedCheckpointIsLost) {
  const std::vector<Life> lives = {
      {.steps = {1, 2, 3, 3, 4}, .retention = {.last = 2}},
      {.steps = {5, 5, 5, 6, 6}, .retention = {.last = 1}},
      {.steps = {5, 5, 6, 6, 7}, .retention = {.last = 1}, .can_exchange = false},
      {.steps = {2, 3, 4, 5, 6}, .retention = {.last = 1, .every = 4}},
      {.steps = {11, 12, 13, 14, 14, 15}, .retention = {.last = 1}},
  };
  size_t states = 0;
  for (const Life& life : lives) {
    states += live_and_crash(life, 300, static_cast<uint32_t>(states));
    fs::remove_all(output());
    fs::create_directory(output());
  }
  RecordProperty("states", static_cast<int>(states));
  EXPECT_GE(states, 10'000U);
}

// Any one operation refused, as by a full disk: the save or the pruning fails in one line, what was there is still
// there, and the next save works.
TEST_F(CrashTest, EveryRefusedOperationLeavesTheLastCheckpoint) {
  JournalledFiles files;
  save(1, 1, files);
  save(2, 1, files);
  bool all_done = false;
  size_t refused = 0;
  for (; !all_done; ++refused) {
    const size_t at = files.journal.size() + refused;
    bool once = true, says_so = false;
    files.refuse = [&](size_t done) { return done >= at && std::exchange(once, false) ? ENOSPC : 0; };
    try {
      save(2, 2, files);
      prune_checkpoints(output(), {.last = 1}, files);
    } catch (const UserError& error) {
      says_so = true;
      EXPECT_NE(std::string(error.what()).find("No space left on device"), std::string::npos) << error.what();
    }
    files.refuse = nullptr;
    all_done = once;  // nothing was refused any more
    const bool is_written_instead = files.refused == FileChange::Kind::kLink;
    EXPECT_EQ(says_so, !once && !is_written_instead) << "refused operation " << refused;
    const auto found = find_latest_checkpoint(output());
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->state.step, 2);
    expect_content(*found);
    EXPECT_NO_THROW(save(2, 3, files));
    save(1, 1, files);
  }
  EXPECT_GT(refused, 30U);
}

// A disk that stays full from some operation on: what cannot be cleaned up has no checkpoint's name.
TEST_F(CrashTest, ADiskThatStaysFull) {
  JournalledFiles files;
  save(1, 1, files);
  const size_t before = files.journal.size();
  save(2, 1, files);
  const size_t operations = files.journal.size() - before;
  for (size_t at = 0; at < operations; ++at) {
    const size_t full = files.journal.size() + at;
    files.refuse = [&](size_t done) { return done >= full ? ENOSPC : 0; };
    EXPECT_USER_ERROR(save(3, 1, files), "No space left on device");
    files.refuse = nullptr;
    const auto found = find_latest_checkpoint(output());
    ASSERT_TRUE(found.has_value());
    // The rename is the last but one: only the sync of the names is missing, so it may be the new one.
    EXPECT_GE(found->state.step, 2);
    expect_content(*found);
    remove_tree(output() / "checkpoint-000003");
  }
}

// Flips each bit, and all, of every byte of every file of a checkpoint.
TEST_F(CrashTest, EveryDamagedByteIsNoticed) {
  save(3, 1, system_files());
  const fs::path directory = output() / "checkpoint-000003";
  ASSERT_NO_THROW(read_checkpoint(directory));
  size_t damaged = 0;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string good = read_text(entry.path(), 100'000);
    for (size_t at = 0; at < good.size(); ++at) {
      for (const int change : {1, 2, 4, 8, 16, 32, 64, 128, 255}) {
        std::string bad = good;
        bad[at] = static_cast<char>(bad[at] ^ change);
        std::ofstream(entry.path(), std::ios::binary) << bad;
        EXPECT_THROW(read_checkpoint(directory), UserError) << entry.path() << " byte " << at << " ^ " << change;
        ++damaged;
      }
    }
    std::ofstream(entry.path(), std::ios::binary) << good;
  }
  EXPECT_NO_THROW(read_checkpoint(directory));
  EXPECT_GT(damaged, 4000U);
}

}  // namespace
}  // namespace stepc
