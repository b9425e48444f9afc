#include "train/run/run_snapshots.h"

#include <filesystem>
#include <fstream>
#include <set>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/files.h"
#include "checkpoint/tensor_files.h"
#include "tests/comm/rank_threads.h"
#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc::train {
namespace {

namespace fs = std::filesystem;

TEST(Machines, CopiesGoToOtherMachines) {
  const Machines four({"a", "a", "b", "b", "c", "c", "d", "d"});
  EXPECT_EQ(four.count(), 4);
  EXPECT_EQ(four.holder(1, 0, 1), 5);  // half a ring away
  EXPECT_EQ(four.holder(6, 0, 1), 2);
  const Machines two({"a", "b", "b", "b"});
  EXPECT_EQ(two.holder(0, 0, 1), 1);
  for (int64_t rank : {1, 2, 3}) EXPECT_EQ(two.holder(rank, 0, 1), 0);
  // Each copy is somewhere else.
  for (int64_t rank = 0; rank < 8; ++rank)
    for (int64_t copy = 0; copy < 3; ++copy) {
      EXPECT_NE(four.of(four.holder(rank, copy, 3)), four.of(rank));
      for (int64_t other = 0; other < copy; ++other)
        EXPECT_NE(four.of(four.holder(rank, copy, 3)), four.of(four.holder(rank, other, 3)));
    }
}

constexpr const char* kMesh = "dp_shard=4";

// Four ranks on two machines.
class Snapshots : public ::testing::Test {
 protected:
  Snapshots() {
    for (const char* name : {"a", "b"}) fs::create_directory(memory_ / name);
  }
  void on_all(int64_t copies, const std::function<void(RunSnapshots&, int64_t rank)>& work) {
    const auto all = Ranks::threads(4, std::chrono::seconds(20));
    on_ranks(all, [&](Ranks& ranks) {
      const int64_t rank = ranks.rank();
      RunSnapshots snapshots(all[static_cast<size_t>(rank)], "out", "this run", memory_ / (rank < 2 ? "a" : "b"),
                             copies);
      work(snapshots, rank);
    });
  }
  // Each rank has one row of a tensor: its number, and the step.
  static void take(RunSnapshots& snapshots, int64_t rank, int64_t step) {
    EXPECT_TRUE(snapshots.take({.step = step}, kMesh, [&](const fs::path& directory, FileSystem& files) {
      const std::vector<int32_t> values = {static_cast<int32_t>(rank), static_cast<int32_t>(step)};
      write_safetensors(directory / name_of(SliceFile{rank, "model", 0, 1}),
                        std::vector<TensorView>{{"w", DType::kI32, {1, 2}, std::as_bytes(std::span(values))}},
                        metadata_of_slices({"w"}, {{{rank, 0}, {1, 2}}}, {{4, 2}}, kMesh), files);
    }));
    snapshots.wait();
  }
  static void expect_whole(const RunSnapshots::Found& found, int64_t step, const std::string& from) {
    ASSERT_TRUE(found.checkpoint) << found.from;
    EXPECT_EQ(found.from, from);
    EXPECT_EQ(read_checkpoint(found.checkpoint->directory).state.step, step);
    const TensorFiles files(found.checkpoint->directory, kModelFiles);
    std::vector<int32_t> values(8);
    files.read(files.tensors()[0], {{0, 0}, {4, 2}}, std::as_writable_bytes(std::span(values)));
    for (int64_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(values[static_cast<size_t>(2 * rank)], rank);
      EXPECT_EQ(values[static_cast<size_t>(2 * rank + 1)], step);
    }
  }
  static ino_t inode(const fs::path& path) {
    struct stat found {};
    EXPECT_EQ(::stat(path.c_str(), &found), 0) << path;
    return found.st_ino;
  }
  // What is there of the one run.
  fs::path store(const char* machine) const {
    const fs::path of_user = fs::directory_iterator(memory_ / machine)->path();
    return fs::directory_iterator(of_user)->path();
  }
  fs::path newest(const char* machine) const {
    fs::path found;
    for (const auto& entry : fs::directory_iterator(store(machine)))
      if (SnapshotStore::step_of(entry.path().filename()) >= 0) found = std::max(found, entry.path());
    return found;
  }
  TempDir memory_;
};

TEST_F(Snapshots, OfOwnMemory) {
  on_all(0, [&](RunSnapshots& snapshots, int64_t rank) {
    EXPECT_FALSE(snapshots.find(0).checkpoint);
    for (const int64_t step : {2, 4}) take(snapshots, rank, step);
    EXPECT_EQ(snapshots.made().count, 2);
  });
  on_all(0, [&](RunSnapshots& snapshots, int64_t rank) {
    expect_whole(snapshots.find(0), 4, "2 of 4 parts came from other machines");
    take(snapshots, rank, 6);
  });
  EXPECT_EQ(std::distance(fs::directory_iterator(store("a")), fs::directory_iterator()), 4)
      << "one, whose they are, and two ranks' places for the next";
  on_all(0, [&](RunSnapshots& snapshots, int64_t /*rank*/) {
    EXPECT_FALSE(snapshots.find(7).checkpoint);
    snapshots.remove();
  });
  EXPECT_TRUE(fs::is_empty(memory_ / "a"));
}

// Of one rank, whose part takes its time: all leave the next one out.
TEST_F(Snapshots, OneThatIsStillUnderWay) {
  const auto write = [](const fs::path& directory, FileSystem& files) {
    write_file_synced(directory / "of-all", "x", files);
  };
  on_all(1, [&](RunSnapshots& snapshots, int64_t rank) {
    snapshots.find(0);
    EXPECT_TRUE(snapshots.take({.step = 2}, kMesh, write));
    snapshots.wait();
    EXPECT_TRUE(snapshots.take({.step = 4}, kMesh, [&](const fs::path& directory, FileSystem& files) {
      const std::string text(rank == 1 ? size_t{256} << 20 : 1, 'x');
      write_file_synced(directory / "of-all", text, files);
    }));
    EXPECT_FALSE(snapshots.take({.step = 5}, kMesh, write));
    EXPECT_EQ(snapshots.made().left_out, 1);
    snapshots.wait();
    EXPECT_TRUE(snapshots.take({.step = 6}, kMesh, write));
    snapshots.wait();
    EXPECT_EQ(snapshots.made().count, 3);
  });
}

TEST_F(Snapshots, OfAMachineThatIsGone) {
  on_all(1, [&](RunSnapshots& snapshots, int64_t rank) {
    snapshots.find(0);
    take(snapshots, rank, 2);
  });
  fs::remove_all(*fs::directory_iterator(memory_ / "b"));
  on_all(1, [&](RunSnapshots& snapshots, int64_t rank) {
    expect_whole(snapshots.find(0), 2, rank < 2 ? "all of 4 parts were here" : "4 of 4 parts came from other machines");
  });
}

TEST_F(Snapshots, AllGoOnFromTheSameStep) {
  on_all(0, [&](RunSnapshots& snapshots, int64_t rank) {
    snapshots.find(0);
    take(snapshots, rank, 2);
  });
  // One that some of them have made, and one that all have of which a byte has changed.
  EXPECT_USER_ERROR(on_all(0,
                           [&](RunSnapshots& snapshots, int64_t rank) {
                             snapshots.find(0);
                             if (rank == 2)
                               snapshots.take({.step = 4}, kMesh, [](const auto&, FileSystem&) { user_error("x"); });
                             take(snapshots, rank, 4);
                           }),
                    "rank 2: x");
  EXPECT_EQ(newest("a").filename().string().substr(0, 9), "000000004");
  on_all(0, [&](RunSnapshots& snapshots, int64_t /*rank*/) {
    expect_whole(snapshots.find(0), 2, "all of 4 parts were here");  // fetched before
  });
  for (const char* machine : {"a", "b"})
    for (const auto& entry : fs::directory_iterator(store(machine)))
      if (fs::exists(entry.path() / "rank-00003"))
        std::ofstream(entry.path() / "rank-00003" / name_of(SliceFile{2, "model", 0, 1})) << "x";
  on_all(0, [&](RunSnapshots& snapshots, int64_t /*rank*/) {
    const RunSnapshots::Found found = snapshots.find(0);
    EXPECT_FALSE(found.checkpoint);
    EXPECT_EQ(found.from, "no snapshot in memory is whole, and newer than the checkpoint");
  });
}

TEST_F(Snapshots, ARankThatCannotWrite) {
  EXPECT_USER_ERROR(on_all(1,
                           [&](RunSnapshots& snapshots, int64_t rank) {
                             snapshots.find(0);
                             snapshots.take({.step = 2}, kMesh,
                                            [&](const fs::path& /*directory*/, FileSystem& /*files*/) {
                                              USER_CHECK(rank != 2, "no room");
                                            });
                             snapshots.wait();
                           }),
                    "rank 2: no room");
}

TEST_F(Snapshots, OfOneProcess) {
  const auto found_by = [&](const std::string& run, int64_t least) {
    return RunSnapshots(nullptr, "out", run, memory_ / "a", 1).find(least);
  };
  {
    RunSnapshots snapshots(nullptr, "out", "this run", memory_ / "a", 1);
    EXPECT_FALSE(snapshots.find(0).checkpoint);
    std::set<ino_t> places;
    for (const int64_t step : {3, 6, 9, 12}) {
      const auto write = [&](const fs::path& directory, FileSystem& files) {
        write_file_synced(directory / "of-0", str("step {}", std::string(static_cast<size_t>(step), 'x')), files);
        if (step == 6) write_file_synced(directory / "of-6", "gone", files);
      };
      EXPECT_TRUE(snapshots.take({.step = step}, "", write));
      snapshots.wait();
      places.insert(inode(newest("a") / "rank-00001" / "of-0"));
    }
    EXPECT_EQ(snapshots.made().count, 4);
    EXPECT_EQ(snapshots.made().left_out, 0);
    EXPECT_EQ(places.size(), 2U) << "memory is taken twice, and then used again";
  }
  const RunSnapshots::Found found = found_by("this run", 4);
  ASSERT_TRUE(found.checkpoint);
  EXPECT_EQ(found.checkpoint->state.step, 12);
  EXPECT_EQ(found.from, "all of 1 parts were here");
  EXPECT_EQ(read_text(found.checkpoint->directory / "of-0", 99), "step xxxxxxxxxxxx");
  EXPECT_FALSE(fs::exists(found.checkpoint->directory / "of-6"));
  // A byte of it is another one.
  std::ofstream(newest("a") / "rank-00001" / "of-0") << "step xxxxxxxxxxxy";
  EXPECT_FALSE(found_by("this run", 0).checkpoint);
  const RunSnapshots::Found other = found_by("that run", 0);
  EXPECT_FALSE(other.checkpoint);
  EXPECT_NE(other.from.find("is a snapshot of another run (this run, this one is that run): removed"),
            std::string::npos)
      << other.from;
}

TEST_F(Snapshots, WhatDoesNotFit) {
  RunSnapshots alone(nullptr, "out", "r", memory_ / "a", 1);
  alone.check_room(1 << 20, 5);
  EXPECT_USER_ERROR(alone.check_room(uint64_t{1} << 60, 5),
                    "elastic.snapshot_every = 5: memory too small for snapshots: they take 2097152.0 TiB in ");
}

}  // namespace
}  // namespace stepc::train
