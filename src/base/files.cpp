#include "base/files.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"

namespace stepc {

namespace fs = std::filesystem;

namespace {
[[noreturn]] void system_error(const char* action, const fs::path& path, int error) {
  user_error("cannot {} {}: {}", action, path.string(), std::generic_category().message(error));
}

// A descriptor that closes itself.
class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags, const char* action) : value_(::open(path.c_str(), flags | O_CLOEXEC)) {
    if (value_ < 0) system_error(action, path, errno);
  }
  ~Descriptor() { ::close(value_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return value_; }

 private:
  int value_;
};

void sync_path(const fs::path& path, int flags) {
  const Descriptor descriptor(path, O_RDONLY | flags, "open");
  if (::fsync(descriptor.get()) != 0) system_error("sync", path, errno);
}

fs::path parent_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

fs::path beside(const fs::path& path, const char* ending) {
  fs::path result = path;
  result += str(".{}-{}", ending, ::getpid());
  return result;
}

// Files first, then the directories that name them, the inner ones before the outer.
void sync_tree(const fs::path& directory) {
  std::error_code error;
  fs::directory_iterator entry(directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const fs::file_status status = entry->symlink_status(error);
    if (error) break;
    if (fs::is_directory(status)) sync_tree(entry->path());
    if (fs::is_regular_file(status)) sync_path(entry->path(), 0);
  }
  if (error) system_error("list", directory, error.value());
  sync_directory(directory);
}

// Puts `from` where `to` is. One atomic exchange where the file system knows it; else `to` steps aside first and comes
// back if the rename fails.
void replace_directory(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
    remove_tree(from);
    return;
  }
  if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) system_error("replace", to, errno);
  const fs::path old = beside(to, "old");
  if (::rename(to.c_str(), old.c_str()) != 0) system_error("replace", to, errno);
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int error = errno;
    ::rename(old.c_str(), to.c_str());
    system_error("replace", to, error);
  }
  remove_tree(old);
}
}  // namespace

std::string read_text(const fs::path& path, uint64_t max_bytes) {
  const Descriptor descriptor(path, O_RDONLY, "open");
  std::string text;
  while (true) {
    const size_t have = text.size();
    constexpr size_t kBlock = 1 << 16;
    text.resize(have + kBlock);
    const ssize_t got = ::read(descriptor.get(), text.data() + have, kBlock);
    if (got < 0 && errno != EINTR) system_error("read", path, errno);
    text.resize(have + (got > 0 ? static_cast<size_t>(got) : 0));
    if (got == 0) return text;
    USER_CHECK(text.size() <= max_bytes, "{} is larger than {}, the most that is read here", path.string(),
               human_bytes(max_bytes));
  }
}

MappedFile::MappedFile(const fs::path& path) {
  // Non-blocking: opening a FIFO must not wait for a writer.
  const Descriptor descriptor(path, O_RDONLY | O_NONBLOCK, "open");
  struct stat info = {};
  if (::fstat(descriptor.get(), &info) != 0) system_error("read", path, errno);
  USER_CHECK(S_ISREG(info.st_mode), "cannot read {}: not a regular file", path.string());
  if (info.st_size == 0) return;
  const auto size = static_cast<size_t>(info.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor.get(), 0);
  if (address == MAP_FAILED) system_error("map", path, errno);
  bytes_ = {static_cast<const std::byte*>(address), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

FileWriter::FileWriter(fs::path path) : path_(std::move(path)), temporary_(beside(path_, "tmp")) {
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) system_error("write", path_, errno);
}

FileWriter::~FileWriter() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void FileWriter::write(std::span<const std::byte> bytes) {
  INTERNAL_CHECK(descriptor_ >= 0, "write after commit");
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(descriptor_, bytes.data(), bytes.size());
    if (wrote < 0 && errno != EINTR) system_error("write", path_, errno);
    if (wrote > 0) bytes = bytes.subspan(static_cast<size_t>(wrote));
  }
}

void FileWriter::commit() {
  INTERNAL_CHECK(descriptor_ >= 0, "committed twice");
  if (::fsync(descriptor_) != 0) system_error("sync", path_, errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) system_error("write", path_, errno);
  const int closed = ::close(std::exchange(descriptor_, -1));
  if (closed != 0) system_error("write", path_, errno);
  sync_directory(parent_of(path_));
}

void write_file_synced(const fs::path& path, std::span<const std::byte> bytes) {
  FileWriter writer(path);
  writer.write(bytes);
  writer.commit();
}

void write_file_synced(const fs::path& path, std::string_view text) {
  write_file_synced(path, std::as_bytes(std::span(text)));
}

void sync_directory(const fs::path& path) { sync_path(path, O_DIRECTORY); }

DirectoryTransaction::DirectoryTransaction(const fs::path& final_path, Existing existing)
    : final_(final_path.lexically_normal()), existing_(existing) {
  if (!final_.has_filename()) final_ = final_.parent_path();  // "out/" means "out"
  const std::string name = final_.filename().string();
  USER_CHECK(!name.empty() && name != "." && name != "..", "cannot write a directory named \"{}\"",
             final_path.string());
  std::error_code error;
  const bool exists = fs::symlink_status(final_, error).type() != fs::file_type::not_found;
  USER_CHECK(!exists || existing == Existing::kReplace, "{} exists already", final_.string());
  temporary_ = beside(final_, "tmp");
  fs::create_directories(parent_of(final_), error);
  if (error) system_error("create", parent_of(final_), error.value());
  remove_tree(temporary_);  // left by a dead process that had our pid
  if (::mkdir(temporary_.c_str(), 0777) != 0) system_error("create", temporary_, errno);
}

DirectoryTransaction::~DirectoryTransaction() {
  std::error_code ignored;
  if (open_) fs::remove_all(temporary_, ignored);
}

void DirectoryTransaction::commit() {
  INTERNAL_CHECK(open_, "committed twice");
  sync_tree(temporary_);
  std::error_code error;
  const bool exists = fs::symlink_status(final_, error).type() != fs::file_type::not_found;
  USER_CHECK(!exists || existing_ == Existing::kReplace, "{} exists already", final_.string());
  if (exists) {
    replace_directory(temporary_, final_);
  } else if (::rename(temporary_.c_str(), final_.c_str()) != 0) {
    system_error("create", final_, errno);
  }
  open_ = false;
  sync_directory(parent_of(final_));
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) system_error("remove", path, error.value());
}

}  // namespace stepc
