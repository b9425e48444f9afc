#include "base/files.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(ReadText, IsBounded) {
  const TempDir dir;
  const std::string text(200'000, 'x');
  write_file_synced(dir / "a", text);
  EXPECT_EQ(read_text(dir / "a", text.size()), text);
  EXPECT_USER_ERROR(read_text(dir / "a", text.size() - 1), "larger than");
  EXPECT_USER_ERROR(read_text("/proc/self/maps", 10), "/proc/self/maps is larger than 10 B");  // it has no size
}

TEST(ReadText, NamesPathAndReason) {
  const TempDir dir;
  EXPECT_USER_ERROR(read_text(dir / "none", 10), "none: No such file or directory");
  EXPECT_USER_ERROR(read_text(dir.path(), 10), "Is a directory");
}

// Neither waits for a writer, nor for an end that does not come.
TEST(ReadText, RefusesWhatIsNoFile) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  EXPECT_USER_ERROR(read_text(dir / "fifo", 10), "fifo: not a regular file");
  EXPECT_USER_ERROR(read_text("/dev/zero", 10), "cannot read /dev/zero: not a regular file");
}

TEST(MappedFile, HoldsTheBytes) {
  const TempDir dir;
  write_file_synced(dir / "a", "hello");
  write_file_synced(dir / "empty", "");
  MappedFile a(dir / "a");
  EXPECT_EQ(a.text(), "hello");
  MappedFile moved = std::move(a);
  EXPECT_EQ(moved.text(), "hello");
  EXPECT_EQ(MappedFile(dir / "empty").text(), "");
}

TEST(MappedFile, RefusesWhatIsNoFile) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  EXPECT_USER_ERROR(MappedFile(dir / "fifo"), "not a regular file");
  EXPECT_USER_ERROR(MappedFile(dir.path()), "Is a directory");
  EXPECT_USER_ERROR(MappedFile(dir / "none"), "No such file");
}

TEST(FileWriter, KeepsTheOldFileUntilCommit) {
  const TempDir dir;
  write_file_synced(dir / "a", "old");
  {
    FileWriter writer(dir / "a");
    writer.write("half");
    EXPECT_EQ(read_text(dir / "a", 10), "old");
  }
  EXPECT_EQ(read_text(dir / "a", 10), "old");
  FileWriter writer(dir / "a");
  writer.write("n");
  writer.write("ew");
  writer.commit();
  EXPECT_EQ(read_text(dir / "a", 10), "new");
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"a"});
}

TEST(FileWriter, ReportsFailures) {
  const TempDir dir;
  EXPECT_USER_ERROR(FileWriter(dir / "no/a"), "No such file or directory");
  fs::create_directory(dir / "taken");
  EXPECT_USER_ERROR(write_file_synced(dir / "taken", "x"), "taken");
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"taken"});
}

TEST(FileWriter, AFullDiskIsAnError) {
  // /dev/full cannot be renamed onto, so the writer is given a link whose temporary name leads there.
  const TempDir dir;
  const fs::path temporary = dir / ("a.tmp-" + std::to_string(::getpid()));
  fs::create_symlink("/dev/full", temporary);
  EXPECT_USER_ERROR(write_file_synced(dir / "a", "x"), "a: No space left on device");
}

TEST(DirectoryTransaction, AppearsWhole) {
  const TempDir dir;
  DirectoryTransaction transaction(dir / "deep/out/");
  write_file_synced(transaction.path() / "a", "1");
  fs::create_directory(transaction.path() / "inner");
  write_file_synced(transaction.path() / "inner/b", "2");
  EXPECT_FALSE(fs::exists(dir / "deep/out"));
  transaction.commit();
  EXPECT_EQ(read_text(dir / "deep/out/inner/b", 10), "2");
  EXPECT_EQ(names_in(dir / "deep"), std::vector<std::string>{"out"});
}

TEST(DirectoryTransaction, AbandonedLeavesNothing) {
  const TempDir dir;
  {
    DirectoryTransaction transaction(dir / "out");
    write_file_synced(transaction.path() / "a", "1");
  }
  EXPECT_TRUE(names_in(dir.path()).empty());
}

TEST(DirectoryTransaction, RefusesOrReplacesWhatExists) {
  const TempDir dir;
  fs::create_directory(dir / "out");
  write_file_synced(dir / "out/old", "old");
  EXPECT_USER_ERROR(DirectoryTransaction(dir / "out"), "out exists already");

  DirectoryTransaction transaction(dir / "out", DirectoryTransaction::Existing::kReplace);
  write_file_synced(transaction.path() / "new", "new");
  EXPECT_EQ(read_text(dir / "out/old", 10), "old");
  transaction.commit();
  EXPECT_EQ(names_in(dir / "out"), std::vector<std::string>{"new"});
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"out"});
}

TEST(DirectoryTransaction, RefusesWhatAppearedMeanwhile) {
  const TempDir dir;
  DirectoryTransaction transaction(dir / "out");
  fs::create_directory(dir / "out");
  EXPECT_USER_ERROR(transaction.commit(), "exists already");
}

TEST(DirectoryTransaction, RefusesNamesThatAreNone) {
  EXPECT_USER_ERROR(DirectoryTransaction("."), "cannot write a directory named");
  EXPECT_USER_ERROR(DirectoryTransaction("/"), "cannot write a directory named");
  EXPECT_USER_ERROR(DirectoryTransaction("/dev/null/out"), "/dev/null");
}

}  // namespace
}  // namespace stepc
