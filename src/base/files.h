// Files: bounded reads, read-only maps, durable writes, and directories that appear whole or not at all. Every failure
// is a UserError of one line with the path and the system's reason. Whatever changes something takes a FileSystem,
// which must outlive it. Linux only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/file_system.h"

namespace stepc {

// The whole of a regular file; more than `max_bytes` is an error.
std::string read_text(const std::filesystem::path& path, uint64_t max_bytes);

// A regular file mapped read-only for the object's life. Another process that shortens the file meanwhile ends this one
// with SIGBUS: map only files that nobody writes in place.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }
  // Lets go of the memory that bytes [begin, end) take; who reads them again has them read from the file again.
  void let_go(uint64_t begin, uint64_t end) const;

 private:
  std::span<const std::byte> bytes_;
};

// A file written beside its final name, synced and renamed into place by commit(). Until then, and after a failure,
// what had that name before is untouched.
class FileWriter {
 public:
  explicit FileWriter(std::filesystem::path path, FileSystem& files = system_files());
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  // In the stead of what was written at the beginning.
  void write_at_beginning(std::span<const std::byte> bytes);
  void commit();

 private:
  FileSystem& files_;
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;  // open until commit() or the destructor
};

// FileWriter in one call.
void write_file_synced(const std::filesystem::path& path, std::span<const std::byte> bytes,
                       FileSystem& files = system_files());
void write_file_synced(const std::filesystem::path& path, std::string_view text, FileSystem& files = system_files());

// Makes the names in a directory durable.
void sync_directory(const std::filesystem::path& path, FileSystem& files = system_files());

// Makes the directory and those above it that are missing, durably.
void make_directories(const std::filesystem::path& path, FileSystem& files = system_files());

// A directory written beside its final name as `<name>.tmp-<pid>`. commit() syncs every file in it and renames it into
// place; the destructor of one that was not committed removes it.
//
//   DirectoryTransaction transaction("out/checkpoint-000200");
//   write_file_synced(transaction.path() / "config.json", text);
//   transaction.commit();
class DirectoryTransaction {
 public:
  enum class Existing { kRefuse, kReplace };  // what to do when the final name exists

  explicit DirectoryTransaction(const std::filesystem::path& final_path, Existing existing = Existing::kRefuse,
                                FileSystem& files = system_files());
  ~DirectoryTransaction();
  DirectoryTransaction(const DirectoryTransaction&) = delete;
  DirectoryTransaction& operator=(const DirectoryTransaction&) = delete;

  // Where to write until commit().
  [[nodiscard]] const std::filesystem::path& path() const { return temporary_; }
  [[nodiscard]] const std::filesystem::path& final_path() const { return final_; }
  void commit();

 private:
  void replace_existing();

  FileSystem& files_;
  std::filesystem::path final_;
  std::filesystem::path temporary_;
  Existing existing_;
  bool open_ = true;
};

// Removes a file or a whole directory; nothing there is no error.
void remove_tree(const std::filesystem::path& path, FileSystem& files = system_files());

}  // namespace stepc
