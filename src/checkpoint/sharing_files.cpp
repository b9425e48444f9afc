#include "checkpoint/sharing_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "base/check.h"

namespace stepc {

namespace fs = std::filesystem;

struct SharingFiles::Twin {
  fs::path path;   // where it would be written
  fs::path older;  // whose bytes it has had
  MappedFile bytes;
  size_t equal = 0;     // of them
  int descriptor = -1;  // of what is written, from the first other byte on
};

SharingFiles::SharingFiles(FileSystem& files, fs::path older, uint64_t least_bytes)
    : files_(files), older_(std::move(older)), least_bytes_(least_bytes) {}

SharingFiles::~SharingFiles() {
  for (const auto& [stand_in, twin] : twins_) {
    if (twin->descriptor >= 0) files_.close(twin->descriptor);
    ::close(stand_in);
  }
}

// Writes what was alike until now, as a file of its own.
int SharingFiles::part(Twin& twin) {
  if (twin.descriptor >= 0) return 0;
  if (const int error = files_.create(twin.path, twin.descriptor)) return error;
  return files_.write(twin.descriptor, twin.bytes.bytes().first(twin.equal));
}

int SharingFiles::create(const fs::path& path, int& descriptor) {
  const std::string name = path.filename().string();
  const fs::path older = older_ / name.substr(0, name.rfind(".tmp-"));  // FileWriter writes beside
  std::error_code ignored;
  if (older_.empty() || !fs::is_regular_file(fs::symlink_status(older, ignored)))
    return files_.create(path, descriptor);
  try {
    auto twin = std::make_unique<Twin>(Twin{path, older, MappedFile(older)});
    if (twin->bytes.bytes().size() < least_bytes_) return files_.create(path, descriptor);
    descriptor = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (descriptor < 0) return errno;
    twins_[descriptor] = std::move(twin);
    return 0;
  } catch (const UserError&) {
    return files_.create(path, descriptor);
  }
}

int SharingFiles::write(int descriptor, std::span<const std::byte> bytes) {
  const auto found = twins_.find(descriptor);
  if (found == twins_.end()) return files_.write(descriptor, bytes);
  Twin& twin = *found->second;
  if (twin.descriptor < 0) {
    const std::span<const std::byte> rest = twin.bytes.bytes().subspan(twin.equal);
    if (bytes.size() <= rest.size() && std::memcmp(bytes.data(), rest.data(), bytes.size()) == 0) {
      twin.bytes.let_go(twin.equal, twin.equal + bytes.size());
      twin.equal += bytes.size();
      return 0;
    }
    if (const int error = part(twin)) return error;
  }
  return files_.write(twin.descriptor, bytes);
}

int SharingFiles::write_at(int descriptor, uint64_t offset, std::span<const std::byte> bytes) {
  const auto found = twins_.find(descriptor);
  if (found == twins_.end()) return files_.write_at(descriptor, offset, bytes);
  if (const int error = part(*found->second)) return error;
  return files_.write_at(found->second->descriptor, offset, bytes);
}

int SharingFiles::sync(int descriptor) {
  const auto found = twins_.find(descriptor);
  if (found == twins_.end()) return files_.sync(descriptor);
  Twin& twin = *found->second;
  if (twin.equal == twin.bytes.bytes().size() && twin.descriptor < 0) return 0;  // the older one is
  if (const int error = part(twin)) return error;
  return files_.sync(twin.descriptor);
}

int SharingFiles::rename(const fs::path& from, const fs::path& to) {
  const auto found = std::ranges::find_if(
      twins_, [&](const auto& one) { return one.second->path == from && one.second->descriptor < 0; });
  if (found == twins_.end()) return files_.rename(from, to);
  Twin& twin = *found->second;
  if (twin.equal == twin.bytes.bytes().size() && files_.link(twin.older, to) == 0) {
    shared_bytes_ += twin.equal;
    return 0;
  }
  // Where there are no second names, or something has this one.
  if (const int error = part(twin)) return error;
  if (const int error = files_.sync(twin.descriptor)) return error;
  return files_.rename(from, to);
}

int SharingFiles::close(int descriptor) {
  const auto found = twins_.find(descriptor);
  if (found == twins_.end()) return files_.close(descriptor);
  const int error = found->second->descriptor >= 0 ? files_.close(found->second->descriptor) : 0;
  ::close(descriptor);
  twins_.erase(found);
  return error;
}

}  // namespace stepc
