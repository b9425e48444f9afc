// What stepc asks of the file system when it changes something, behind one interface: a test refuses any single
// operation of a save, or takes away what was not yet durable when the machine went down. Reading is no part of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace stepc {

// The machine's file system. Every operation returns 0 or an errno.
class FileSystem {
 public:
  FileSystem() = default;
  virtual ~FileSystem() = default;
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;

  // A file for writing, emptied if it is there already.
  virtual int create(const std::filesystem::path& path, int& descriptor);
  // All of the bytes.
  virtual int write(int descriptor, std::span<const std::byte> bytes);
  // The same at a place of the file, in the stead of what is there; what follows is written where it would have been.
  virtual int write_at(int descriptor, uint64_t offset, std::span<const std::byte> bytes);
  virtual int sync(int descriptor);
  virtual int close(int descriptor);

  // Makes a file's content or a directory's names durable.
  virtual int sync_path(const std::filesystem::path& path);
  virtual int rename(const std::filesystem::path& from, const std::filesystem::path& to);
  // Both must be there. EINVAL or ENOSYS where the file system does not know how.
  virtual int exchange(const std::filesystem::path& one, const std::filesystem::path& other);
  // A second name of a file. An errno where the file system has no such, or `to` is there.
  virtual int link(const std::filesystem::path& from, const std::filesystem::path& to);
  virtual int unlink(const std::filesystem::path& path);
  virtual int make_directory(const std::filesystem::path& path);
  virtual int remove_directory(const std::filesystem::path& path);
};

// One for the process; it has no state.
FileSystem& system_files();

}  // namespace stepc
