// SlotFiles: the files of one directory that is written again and again, mapped once. What is written under the name of
// a file that is there goes over its bytes: where sizes stay, a writer waits for one copy of them, and no memory is
// taken. Nothing of it is atomic: something else has to say when the files are whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "base/file_system.h"

namespace stepc {

// Files that need not outlive the machine: nothing waits for a disk, should they be on one.
class UnsyncedFiles : public FileSystem {
 public:
  int sync(int /*descriptor*/) override { return 0; }
  int sync_path(const std::filesystem::path& /*path*/) override { return 0; }
};

class SlotFiles : public UnsyncedFiles {
 public:
  using Copy = std::function<void(std::byte* to, std::span<const std::byte> from)>;

  // `copy`: how bytes are copied; none: by this thread.
  explicit SlotFiles(Copy copy = {});
  ~SlotFiles() override;

  // The directory, which may have got another name. A round of writing begins; end() removes what it has not written.
  void begin(std::filesystem::path directory);
  void end();
  // A file of that size, written in this round by whoever asks. UserError where it does not fit.
  std::span<std::byte> make(const std::string& name, uint64_t bytes);
  // Files of the names and sizes that another has, with memory for all of them.
  void resemble(const SlotFiles& other);

  int create(const std::filesystem::path& path, int& descriptor) override;
  int write(int descriptor, std::span<const std::byte> bytes) override;
  int write_at(int descriptor, uint64_t offset, std::span<const std::byte> bytes) override;
  int close(int descriptor) override;
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  int unlink(const std::filesystem::path& path) override;

 private:
  struct File {
    int descriptor = -1;  // open as long as the file is known
    std::byte* memory = nullptr;
    uint64_t bytes = 0;
    uint64_t at = 0;  // that have been written in this round
    bool is_written = false;
  };
  File* find(int descriptor);
  int open(const std::string& name, File*& file);
  static int resize(File& file, uint64_t bytes);
  static void let_go(const File& file);

  Copy copy_;
  std::filesystem::path directory_;
  std::map<std::string, File> files_;
};

}  // namespace stepc
