#include "checkpoint/slot_files.h"

#include <filesystem>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/files.h"
#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

namespace fs = std::filesystem;

ino_t inode(const fs::path& path) {
  struct stat found {};
  EXPECT_EQ(::stat(path.c_str(), &found), 0) << path;
  return found.st_ino;
}

TEST(SlotFiles, WritesOverWhatIsThere) {
  const TempDir memory;
  SlotFiles files;
  files.begin(memory.path());
  write_file_synced(memory / "a", std::string("first"), files);
  const ino_t first = inode(memory / "a");
  for (const std::string text : {"other", "longer than that", "", "less"}) {
    files.begin(memory.path());
    write_file_synced(memory / "a", text, files);
    files.end();
    EXPECT_EQ(read_text(memory / "a", 99), text);
  }
  EXPECT_EQ(inode(memory / "a"), first);
  FileWriter writer(memory / "a", files);
  writer.write("12345678");
  writer.write_at_beginning(std::as_bytes(std::span("ab", 2)));
  writer.commit();
  EXPECT_EQ(read_text(memory / "a", 99), "ab345678");
  struct stat found {};
  ASSERT_EQ(stat((memory / "a").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600U);
}

TEST(SlotFiles, ARoundHasWhatItWrites) {
  const TempDir memory;
  SlotFiles files;
  files.begin(memory.path());
  for (const char* name : {"a", "b"}) write_file_synced(memory / name, std::string("x"), files);
  fs::rename(memory.path(), memory.path().string() + "-2");
  const fs::path moved = memory.path().string() + "-2";
  files.begin(moved);
  write_file_synced(moved / "b", std::string("y"), files);
  files.end();
  EXPECT_FALSE(fs::exists(moved / "a"));
  EXPECT_EQ(read_text(moved / "b", 9), "y");
  fs::rename(moved, memory.path());
}

TEST(SlotFiles, MemoryForAnother) {
  const TempDir memory;
  fs::create_directory(memory / "1");
  fs::create_directory(memory / "2");
  SlotFiles one, other;
  one.begin(memory / "1");
  write_file_synced(memory / "1/a", std::string("abc"), one);
  std::ranges::fill(one.make("b", 5000), std::byte{7});
  EXPECT_TRUE(one.make("c", 0).empty());
  other.begin(memory / "2");
  other.resemble(one);
  EXPECT_EQ(fs::file_size(memory / "2/a"), 3U);
  EXPECT_EQ(fs::file_size(memory / "2/b"), 5000U);
  EXPECT_EQ(read_text(memory / "1/b", 5000), std::string(5000, 7));
  EXPECT_EQ(read_text(memory / "2/b", 5000), std::string(5000, 0));
}

TEST(SlotFiles, WhatDoesNotFit) {
  const TempDir memory;
  SlotFiles files;
  files.begin(memory.path());
  EXPECT_USER_ERROR(files.make("a", uint64_t{1} << 62), "/a: 4194304.0 TiB do not fit: ");
  files.begin(memory / "none");
  EXPECT_USER_ERROR(files.make("c", 1), "do not fit: No such file or directory");
  EXPECT_USER_ERROR(write_file_synced(memory / "none/b", std::string("x"), files), "No such file or directory");
}

}  // namespace
}  // namespace stepc
