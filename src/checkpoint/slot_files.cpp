#include "checkpoint/slot_files.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"
#include "base/text.h"

namespace stepc {

namespace fs = std::filesystem;

namespace {
// FileWriter writes beside.
std::string final_name(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.substr(0, name.rfind(".tmp-"));
}
}  // namespace

SlotFiles::SlotFiles(Copy copy) : copy_(std::move(copy)) {
  if (!copy_) copy_ = [](std::byte* to, std::span<const std::byte> from) { std::memcpy(to, from.data(), from.size()); };
}

SlotFiles::~SlotFiles() {
  for (auto& [name, file] : files_) let_go(file);
}

void SlotFiles::begin(fs::path directory) {
  directory_ = std::move(directory);
  for (auto& [name, file] : files_) file.is_written = false;
}

void SlotFiles::end() {
  std::erase_if(files_, [&](auto& one) {
    if (one.second.is_written) return false;
    let_go(one.second);
    ::unlink((directory_ / one.first).c_str());
    return true;
  });
}

std::span<std::byte> SlotFiles::make(const std::string& name, uint64_t bytes) {
  File* file = nullptr;
  int error = open(name, file);
  if (error == 0) error = resize(*file, bytes);
  USER_CHECK(error == 0, "{}: {} do not fit: {}", (directory_ / name).string(), human_bytes(bytes),
             std::strerror(error));
  file->is_written = true;
  return {file->memory, bytes};
}

void SlotFiles::resemble(const SlotFiles& other) {
  for (const auto& [name, file] : other.files_) {
    const std::span<std::byte> bytes = make(name, file.bytes);
    if (!bytes.empty()) std::memset(bytes.data(), 0, bytes.size());  // no later copy waits for pages
  }
}

SlotFiles::File* SlotFiles::find(int descriptor) {
  for (auto& [name, file] : files_)
    if (file.descriptor == descriptor) return &file;
  return nullptr;
}

int SlotFiles::open(const std::string& name, File*& file) {
  const auto known = files_.find(name);
  if (known != files_.end()) {
    file = &known->second;
    return 0;
  }
  const int descriptor = ::open((directory_ / name).c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (descriptor < 0) return errno;
  file = &(files_[name] = {.descriptor = descriptor});
  return 0;
}

// Memory is taken at once, so that what does not fit is an error here and no signal later.
int SlotFiles::resize(File& file, uint64_t bytes) {
  if (bytes == file.bytes) return 0;
  if (bytes > file.bytes)
    if (const int error = ::posix_fallocate(file.descriptor, 0, static_cast<off_t>(bytes))) return error;
  if (bytes == 0) {
    ::munmap(file.memory, file.bytes);
    file.memory = nullptr;
  } else {
    void* const memory = file.memory == nullptr
                             ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.descriptor, 0)
                             : ::mremap(file.memory, file.bytes, bytes, MREMAP_MAYMOVE);
    if (memory == MAP_FAILED) return errno;
    file.memory = static_cast<std::byte*>(memory);
  }
  const bool shrinks = bytes < file.bytes;
  file.bytes = bytes;
  return shrinks && ::ftruncate(file.descriptor, static_cast<off_t>(bytes)) != 0 ? errno : 0;
}

void SlotFiles::let_go(const File& file) {
  if (file.memory != nullptr) ::munmap(file.memory, file.bytes);
  ::close(file.descriptor);
}

int SlotFiles::create(const fs::path& path, int& descriptor) {
  INTERNAL_CHECK(path.parent_path() == directory_, "{} is none of {}", path.string(), directory_.string());
  File* file = nullptr;
  if (const int error = open(final_name(path), file)) return error;
  file->at = 0;
  file->is_written = true;
  descriptor = file->descriptor;
  return 0;
}

int SlotFiles::write(int descriptor, std::span<const std::byte> bytes) {
  File* const file = find(descriptor);
  INTERNAL_CHECK(file != nullptr, "a descriptor of another file system");
  if (const int error = file->at + bytes.size() > file->bytes ? resize(*file, file->at + bytes.size()) : 0)
    return error;
  if (!bytes.empty()) copy_(file->memory + file->at, bytes);
  file->at += bytes.size();
  return 0;
}

int SlotFiles::write_at(int descriptor, uint64_t offset, std::span<const std::byte> bytes) {
  File* const file = find(descriptor);
  INTERNAL_CHECK(file != nullptr && offset + bytes.size() <= file->at, "nothing was written there");
  if (!bytes.empty()) copy_(file->memory + offset, bytes);
  return 0;
}

int SlotFiles::close(int descriptor) { return find(descriptor) != nullptr ? 0 : FileSystem::close(descriptor); }

// It has its name already.
int SlotFiles::rename(const fs::path& from, const fs::path& to) {
  const auto known = files_.find(to.filename().string());
  if (known == files_.end() || final_name(from) != known->first) return FileSystem::rename(from, to);
  return resize(known->second, known->second.at);
}

int SlotFiles::unlink(const fs::path& path) { return files_.contains(final_name(path)) ? 0 : FileSystem::unlink(path); }

}  // namespace stepc
