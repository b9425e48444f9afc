// SharingFiles: a file system for a new checkpoint beside an older one. A file that turns out to have the very bytes of
// the older one's of its name is not written: it becomes a second name of it. What is different is written from its
// first other byte on. Neither is changed afterwards, and the older one may go: whoever has a name of the bytes has
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>

#include "base/files.h"

namespace stepc {

class SharingFiles : public FileSystem {
 public:
  // Smaller files are not worth it: each checkpoint has its own.
  static constexpr uint64_t kLeastBytes = 1 << 20;

  // `older`: a directory, or empty for none. `files` does the work and must outlive this.
  SharingFiles(FileSystem& files, std::filesystem::path older, uint64_t least_bytes = kLeastBytes);
  ~SharingFiles() override;

  int create(const std::filesystem::path& path, int& descriptor) override;
  int write(int descriptor, std::span<const std::byte> bytes) override;
  int write_at(int descriptor, uint64_t offset, std::span<const std::byte> bytes) override;
  int sync(int descriptor) override;
  int close(int descriptor) override;
  int sync_path(const std::filesystem::path& path) override { return files_.sync_path(path); }
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  int exchange(const std::filesystem::path& one, const std::filesystem::path& other) override {
    return files_.exchange(one, other);
  }
  int link(const std::filesystem::path& from, const std::filesystem::path& to) override {
    return files_.link(from, to);
  }
  int unlink(const std::filesystem::path& path) override { return files_.unlink(path); }
  int make_directory(const std::filesystem::path& path) override { return files_.make_directory(path); }
  int remove_directory(const std::filesystem::path& path) override { return files_.remove_directory(path); }

  [[nodiscard]] uint64_t shared_bytes() const { return shared_bytes_; }

 private:
  // A file that has been like the older one so far.
  struct Twin;
  int part(Twin& twin);

  FileSystem& files_;
  std::filesystem::path older_;
  uint64_t least_bytes_;
  std::map<int, std::unique_ptr<Twin>> twins_;  // by what stands for their descriptors
  uint64_t shared_bytes_ = 0;
};

}  // namespace stepc
