#include "base/files.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
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

// Of a regular file, which alone is read. Open it non-blocking: a FIFO must not wait for a writer.
uint64_t regular_size(const Descriptor& descriptor, const fs::path& path) {
  struct stat info = {};
  if (::fstat(descriptor.get(), &info) != 0) system_error("read", path, errno);
  if (S_ISDIR(info.st_mode)) system_error("read", path, EISDIR);
  USER_CHECK(S_ISREG(info.st_mode), "cannot read {}: not a regular file", path.string());
  return static_cast<uint64_t>(info.st_size);
}

void check(int error, const char* action, const fs::path& path) {
  if (error != 0) system_error(action, path, error);
}

fs::path parent_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

fs::path beside(const fs::path& path, const char* ending) {
  fs::path result = path;
  result += str(".{}-{}", ending, ::getpid());
  return result;
}

// What is in a directory, in order of name.
std::vector<fs::path> list_directory(const fs::path& directory) {
  std::vector<fs::path> found;
  std::error_code error;
  fs::directory_iterator entry(directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) found.push_back(entry->path());
  if (error) system_error("list", directory, error.value());
  std::sort(found.begin(), found.end());
  return found;
}

// Files first, then the directories that name them, the inner ones before the outer.
void sync_tree(const fs::path& directory, FileSystem& files) {
  for (const fs::path& path : list_directory(directory)) {
    std::error_code error;
    const fs::file_status status = fs::symlink_status(path, error);
    if (error) system_error("read", path, error.value());
    if (fs::is_directory(status)) sync_tree(path, files);
    if (fs::is_regular_file(status)) check(files.sync_path(path), "sync", path);
  }
  sync_directory(directory, files);
}
}  // namespace

std::string read_text(const fs::path& path, uint64_t max_bytes) {
  const Descriptor descriptor(path, O_RDONLY | O_NONBLOCK, "open");
  const uint64_t bytes = regular_size(descriptor, path);
  USER_CHECK(bytes <= max_bytes, "{} is larger than {}, the most that is read here", path.string(),
             human_bytes(max_bytes));
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
  const Descriptor descriptor(path, O_RDONLY | O_NONBLOCK, "open");
  const size_t size = regular_size(descriptor, path);
  if (size == 0) return;
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

void MappedFile::let_go(uint64_t begin, uint64_t end) const {
  static const auto kPage = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  begin = (begin + kPage - 1) / kPage * kPage;  // whole pages, which nobody else's part lies in
  end = end / kPage * kPage;
  if (begin < end) ::madvise(const_cast<std::byte*>(bytes_.data()) + begin, end - begin, MADV_DONTNEED);
}

FileWriter::FileWriter(fs::path path, FileSystem& files)
    : files_(files), path_(std::move(path)), temporary_(beside(path_, "tmp")) {
  check(files_.create(temporary_, descriptor_), "write", path_);
}

FileWriter::~FileWriter() {
  if (descriptor_ < 0) return;
  files_.close(descriptor_);
  files_.unlink(temporary_);
}

void FileWriter::write(std::span<const std::byte> bytes) {
  INTERNAL_CHECK(descriptor_ >= 0, "write after commit");
  check(files_.write(descriptor_, bytes), "write", path_);
}

void FileWriter::write_at_beginning(std::span<const std::byte> bytes) {
  INTERNAL_CHECK(descriptor_ >= 0, "write after commit");
  check(files_.write_at(descriptor_, 0, bytes), "write", path_);
}

void FileWriter::commit() {
  INTERNAL_CHECK(descriptor_ >= 0, "committed twice");
  check(files_.sync(descriptor_), "sync", path_);
  check(files_.rename(temporary_, path_), "write", path_);
  check(files_.close(std::exchange(descriptor_, -1)), "write", path_);
  sync_directory(parent_of(path_), files_);
}

void write_file_synced(const fs::path& path, std::span<const std::byte> bytes, FileSystem& files) {
  FileWriter writer(path, files);
  writer.write(bytes);
  writer.commit();
}

void write_file_synced(const fs::path& path, std::string_view text, FileSystem& files) {
  write_file_synced(path, std::as_bytes(std::span(text)), files);
}

void sync_directory(const fs::path& path, FileSystem& files) { check(files.sync_path(path), "sync", path); }

void make_directories(const fs::path& path, FileSystem& files) {
  std::error_code error;
  if (fs::is_directory(path, error)) return;
  const fs::path parent = parent_of(path);
  if (parent != path) make_directories(parent, files);
  const int failed = files.make_directory(path);
  if (failed != EEXIST) check(failed, "create", path);
  check(fs::is_directory(path, error) ? 0 : ENOTDIR, "create", path);
  sync_directory(parent, files);
}

DirectoryTransaction::DirectoryTransaction(const fs::path& final_path, Existing existing, FileSystem& files)
    : files_(files), final_(final_path.lexically_normal()), existing_(existing) {
  if (!final_.has_filename()) final_ = final_.parent_path();  // "out/" means "out"
  const std::string name = final_.filename().string();
  USER_CHECK(!name.empty() && name != "." && name != "..", "cannot write a directory named \"{}\"",
             final_path.string());
  std::error_code error;
  const bool exists = fs::symlink_status(final_, error).type() != fs::file_type::not_found;
  USER_CHECK(!exists || existing == Existing::kReplace, "{} exists already", final_.string());
  temporary_ = beside(final_, "tmp");
  make_directories(parent_of(final_), files_);
  remove_tree(temporary_, files_);  // left by a dead process that had our pid
  check(files_.make_directory(temporary_), "create", temporary_);
}

DirectoryTransaction::~DirectoryTransaction() {
  if (!open_) return;
  try {
    remove_tree(temporary_, files_);
  } catch (const std::exception&) {
    // It stays as it is; its name says that it is not to be used.
  }
}

void DirectoryTransaction::commit() {
  INTERNAL_CHECK(open_, "committed twice");
  sync_tree(temporary_, files_);
  std::error_code error;
  const bool exists = fs::symlink_status(final_, error).type() != fs::file_type::not_found;
  USER_CHECK(!exists || existing_ == Existing::kReplace, "{} exists already", final_.string());
  if (exists) {
    replace_existing();
  } else {
    check(files_.rename(temporary_, final_), "create", final_);
    open_ = false;
    sync_directory(parent_of(final_), files_);
  }
}

// One atomic exchange where the file system knows it; else what is there steps aside first and comes back if the rename
// fails. It goes only when the new name is durable: until then it is the good one.
void DirectoryTransaction::replace_existing() {
  fs::path old = temporary_;
  const int error = files_.exchange(temporary_, final_);
  if (error != 0) {
    if (error != EINVAL && error != ENOSYS && error != ENOTSUP) system_error("replace", final_, error);
    old = beside(final_, "old");
    check(files_.rename(final_, old), "replace", final_);
    if (const int failed = files_.rename(temporary_, final_)) {
      files_.rename(old, final_);
      system_error("replace", final_, failed);
    }
  }
  open_ = false;
  sync_directory(parent_of(final_), files_);
  if (old != temporary_) {  // half removed it must not have a name that is not a temporary one
    check(files_.rename(old, temporary_), "remove", old);
    sync_directory(parent_of(final_), files_);
  }
  remove_tree(temporary_, files_);
}

void remove_tree(const fs::path& path, FileSystem& files) {
  std::error_code error;
  const fs::file_type type = fs::symlink_status(path, error).type();
  if (type == fs::file_type::not_found) return;
  if (type == fs::file_type::none) system_error("remove", path, error.value());
  if (type == fs::file_type::directory) {
    for (const fs::path& inner : list_directory(path)) remove_tree(inner, files);
    check(files.remove_directory(path), "remove", path);
  } else {
    check(files.unlink(path), "remove", path);
  }
}

}  // namespace stepc
