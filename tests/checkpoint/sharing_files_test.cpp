#include "checkpoint/sharing_files.h"

#include <cerrno>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "base/files.h"
#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

namespace fs = std::filesystem;

class SharingFilesTest : public ::testing::Test {
 protected:
  SharingFilesTest() {
    for (const char* name : {"old", "new"}) fs::create_directory(dir_ / name);
  }
  void old(const std::string& name, const std::string& text) { write_file_synced(dir_ / "old" / name, text); }
  // In pieces, as tensors come.
  void write(const std::string& name, const std::vector<std::string>& pieces, FileSystem& files) {
    FileWriter writer(dir_ / "new" / name, files);
    for (const std::string& piece : pieces) writer.write(piece);
    writer.commit();
  }
  std::string read(const std::string& name) { return read_text(dir_ / "new" / name, 1000); }
  bool is_shared(const std::string& name) { return fs::equivalent(dir_ / "old" / name, dir_ / "new" / name); }
  TempDir dir_;
};

TEST_F(SharingFilesTest, WhatIsTheSameIsNotWritten) {
  class Counted : public FileSystem {
   public:
    size_t bytes = 0;
    int write(int descriptor, std::span<const std::byte> written) override {
      bytes += written.size();
      return FileSystem::write(descriptor, written);
    }
  };
  for (const char* name : {"same", "other end", "longer", "shorter"}) old(name, "abcdef");
  Counted counted;
  SharingFiles files(counted, dir_ / "old", 0);
  write("same", {"abc", "", "def"}, files);
  EXPECT_EQ(counted.bytes, 0U);
  EXPECT_EQ(files.shared_bytes(), 6U);
  EXPECT_TRUE(is_shared("same"));
  const std::vector<std::pair<std::string, std::string>> others = {
      {"other end", "abcdeg"}, {"longer", "abcdefg"}, {"shorter", "abcde"}, {"fresh", "abcdef"}};
  for (const auto& [name, text] : others) {
    write(name, {text.substr(0, 3), text.substr(3)}, files);
    EXPECT_EQ(read(name), text);
    EXPECT_EQ(fs::hard_link_count(dir_ / "new" / name), 1U);
  }
  EXPECT_EQ(files.shared_bytes(), 6U);
  EXPECT_EQ(read_text(dir_ / "old" / "other end", 10), "abcdef");
  // Each has the bytes, whoever goes first.
  fs::remove_all(dir_ / "old");
  EXPECT_EQ(read("same"), "abcdef");
  for (const auto& entry : fs::directory_iterator(dir_ / "new"))
    EXPECT_EQ(entry.path().string().find(".tmp-"), std::string::npos) << "left over";
}

TEST_F(SharingFilesTest, WhereThereAreNoSecondNames) {
  class NoLinks : public FileSystem {
   public:
    int link(const fs::path& /*from*/, const fs::path& /*to*/) override { return EPERM; }
  };
  old("a", "abc");
  NoLinks no_links;
  SharingFiles files(no_links, dir_ / "old", 0);
  write("a", {"abc"}, files);
  EXPECT_EQ(read("a"), "abc");
  EXPECT_FALSE(is_shared("a"));
}

TEST_F(SharingFilesTest, WhatIsWrittenAgainOrLater) {
  old("a", "abc");
  SharingFiles files(system_files(), dir_ / "old", 0);
  write("a", {"abc"}, files);
  write("a", {"abc"}, files);  // something has the name
  EXPECT_EQ(read("a"), "abc");
  {
    FileWriter writer(dir_ / "new" / "a", files);
    writer.write("abc");
    writer.write_at_beginning(std::as_bytes(std::span("x", 1)));
    writer.commit();
  }
  EXPECT_EQ(read("a"), "xbc");
  EXPECT_EQ(read_text(dir_ / "old" / "a", 10), "abc");
  { FileWriter(dir_ / "new" / "b", files).write("abc"); }  // given up
  EXPECT_FALSE(fs::exists(dir_ / "new" / "b"));
}

TEST_F(SharingFilesTest, SmallFilesAreEachCheckpointsOwn) {
  const std::string large(SharingFiles::kLeastBytes, 'x');
  old("small", "abc");
  old("large", large);
  SharingFiles files(system_files(), dir_ / "old");
  write("small", {"abc"}, files);
  write("large", {large}, files);
  EXPECT_FALSE(is_shared("small"));
  EXPECT_TRUE(is_shared("large"));
}

TEST_F(SharingFilesTest, WithoutAnOlderOne) {
  SharingFiles files(system_files(), {}, 0);
  write("a", {"abc"}, files);
  EXPECT_EQ(read("a"), "abc");
  SharingFiles gone(system_files(), dir_ / "none", 0);
  write("b", {"abc"}, gone);
  EXPECT_EQ(read("b"), "abc");
}

}  // namespace
}  // namespace stepc
