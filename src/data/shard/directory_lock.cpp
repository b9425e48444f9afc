#include "data/shard/directory_lock.h"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/check.h"

namespace stepc {

DirectoryLock::DirectoryLock(const std::filesystem::path& directory, const std::function<void()>& waiting) {
  const std::filesystem::path path = directory / "lock";
  const auto reason = [] { return std::generic_category().message(errno); };
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  USER_CHECK(descriptor_ >= 0, "cannot write {}: {}", path.string(), reason());
  int locked = ::flock(descriptor_, LOCK_EX | LOCK_NB);
  if (locked != 0 && errno == EWOULDBLOCK && waiting) waiting();
  while (locked != 0 && (errno == EWOULDBLOCK || errno == EINTR)) locked = ::flock(descriptor_, LOCK_EX);
  if (locked == 0) return;
  const std::string why = reason();
  ::close(descriptor_);
  user_error("cannot lock {}: {}", path.string(), why);
}

DirectoryLock::~DirectoryLock() { ::close(descriptor_); }

}  // namespace stepc
