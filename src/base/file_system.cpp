#include "base/file_system.h"

#include <cerrno>

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

namespace stepc {

namespace fs = std::filesystem;

namespace {
int error_of(int result) { return result == 0 ? 0 : errno; }
}  // namespace

int FileSystem::create(const fs::path& path, int& descriptor) {
  descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  return descriptor < 0 ? errno : 0;
}

int FileSystem::write(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(descriptor, bytes.data(), bytes.size());
    if (wrote < 0 && errno != EINTR) return errno;
    if (wrote > 0) bytes = bytes.subspan(static_cast<size_t>(wrote));
  }
  return 0;
}

int FileSystem::write_at(int descriptor, uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (wrote < 0 && errno != EINTR) return errno;
    if (wrote <= 0) continue;
    bytes = bytes.subspan(static_cast<size_t>(wrote));
    offset += static_cast<uint64_t>(wrote);
  }
  return 0;
}

int FileSystem::sync(int descriptor) { return error_of(::fsync(descriptor)); }
int FileSystem::close(int descriptor) { return error_of(::close(descriptor)); }

int FileSystem::sync_path(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return errno;
  const int error = error_of(::fsync(descriptor));
  ::close(descriptor);
  return error;
}

int FileSystem::rename(const fs::path& from, const fs::path& to) {
  return error_of(::rename(from.c_str(), to.c_str()));
}

int FileSystem::exchange(const fs::path& one, const fs::path& other) {
  return error_of(::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE));
}

int FileSystem::link(const fs::path& from, const fs::path& to) { return error_of(::link(from.c_str(), to.c_str())); }

int FileSystem::unlink(const fs::path& path) { return error_of(::unlink(path.c_str())); }
int FileSystem::make_directory(const fs::path& path) { return error_of(::mkdir(path.c_str(), 0777)); }
int FileSystem::remove_directory(const fs::path& path) { return error_of(::rmdir(path.c_str())); }

FileSystem& system_files() {
  static FileSystem files;
  return files;
}

}  // namespace stepc
