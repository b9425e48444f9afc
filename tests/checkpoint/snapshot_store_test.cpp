#include "checkpoint/snapshot_store.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/files.h"
#include "checkpoint/checkpoint.h"
#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

namespace fs = std::filesystem;

// A part with a file of this text, whole.
void write_part(SnapshotStore& store, const std::string& snapshot, int64_t rank, const std::string& text) {
  const fs::path directory = store.make_part(snapshot, rank);
  write_file_synced(directory / str("file-{}", rank), text);
  if (rank == 0) write_trainer_state(directory, {.step = SnapshotStore::step_of(snapshot)});
  store.finish_part(snapshot, rank, make_manifest(directory, SnapshotStore::step_of(snapshot)));
}

TEST(SnapshotStore, PartsMakeACheckpoint) {
  const TempDir memory;
  SnapshotStore store(memory.path(), "out");
  EXPECT_EQ(store.run(), "");
  store.claim("this run");
  EXPECT_EQ(SnapshotStore(memory.path(), "out").run(), "this run");
  EXPECT_NE(SnapshotStore(memory.path(), "elsewhere").path(), store.path());
  const std::string snapshot = SnapshotStore::name_of(120, 0x1a2b3c4d5e6f);
  EXPECT_EQ(snapshot, "000000120-3c4d5e6f");
  for (int64_t rank : {1, 0}) write_part(store, snapshot, rank, "abc");
  const std::vector<SnapshotStore::Part> parts = store.parts();
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[1].rank, 1);
  EXPECT_TRUE(store.is_intact(parts[0]) && store.is_intact(parts[1]));
  store.assemble(parts);
  const Checkpoint whole = read_checkpoint(store.whole(snapshot));
  EXPECT_EQ(whole.state.step, 120);
  EXPECT_EQ(fs::hard_link_count(whole.directory / "file-1"), 2U);
  const uint64_t taken = store.taken_bytes();
  EXPECT_GT(taken, 6U);
  EXPECT_LT(taken, 4096U);
  struct stat found {};
  ASSERT_EQ(stat((whole.directory / "file-1").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600U);
}

TEST(SnapshotStore, TornAndDamagedPartsDoNotCount) {
  const TempDir memory;
  SnapshotStore store(memory.path(), "out");
  store.claim("a");
  const std::string first = SnapshotStore::name_of(10, 1), second = SnapshotStore::name_of(20, 1);
  write_part(store, first, 0, "abc");
  write_file_synced(store.make_part(second, 0) / "file-0", std::string("abc"));  // killed before its manifest
  ASSERT_EQ(store.parts().size(), 1U);
  // What is no snapshot, or says another step than its name.
  fs::create_directory(store.path() / "0000000020-1");
  fs::create_directories(store.path() / first / "rank-2");
  write_part(store, SnapshotStore::name_of(30, 1), 0, "abc");
  fs::rename(store.path() / SnapshotStore::name_of(30, 1), store.path() / SnapshotStore::name_of(31, 1));
  ASSERT_EQ(store.parts().size(), 1U);
  EXPECT_TRUE(store.is_intact(store.parts()[0]));
  std::ofstream(store.part(first, 0) / "file-0") << "abd";
  EXPECT_FALSE(store.is_intact(store.parts()[0]));
  fs::remove(store.part(first, 0) / "file-0");
  EXPECT_FALSE(store.is_intact(store.parts()[0]));
}

TEST(SnapshotStore, AnotherRunsSnapshotsGo) {
  const TempDir memory;
  SnapshotStore store(memory.path(), "out");
  store.claim("a");
  write_part(store, SnapshotStore::name_of(10, 1), 0, "abc");
  store.claim("a");
  EXPECT_EQ(store.parts().size(), 1U);
  store.claim("b");
  EXPECT_EQ(store.run(), "b");
  EXPECT_TRUE(store.parts().empty());
  write_part(store, SnapshotStore::name_of(10, 1), 0, "abc");
  write_part(store, SnapshotStore::name_of(20, 1), 0, "abc");
  store.keep({SnapshotStore::name_of(20, 1)});
  ASSERT_EQ(store.parts().size(), 1U);
  EXPECT_EQ(store.parts()[0].snapshot, SnapshotStore::name_of(20, 1));
  store.remove();
  EXPECT_TRUE(fs::is_empty(memory.path()));
}

TEST(SnapshotStore, ADirectoryOfSomebodyElse) {
  const TempDir memory;
  const fs::path own = memory / str("stepc-{}", geteuid());
  fs::create_directory_symlink(memory.path(), own);
  EXPECT_USER_ERROR(SnapshotStore(memory.path(), "out"), "is not a directory of this user alone: remove it");
  fs::remove(own);
  fs::create_directory(own);
  fs::permissions(own, fs::perms::all);
  EXPECT_USER_ERROR(SnapshotStore(memory.path(), "out"), "is not a directory of this user alone");
  EXPECT_USER_ERROR(SnapshotStore(memory / "none", "out"), "give one in memory as STEPC_SNAPSHOT_DIR");
}

}  // namespace
}  // namespace stepc
