#include "train/run_directory.h"

#include <cerrno>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/check.h"
#include "base/files.h"

namespace stepc::train {
namespace fs = std::filesystem;

namespace {

fs::path created(const fs::path& path) {
  try {
    make_directories(path);  // durably: a crash must not take the directory with the checkpoints in it
  } catch (const UserError& error) {
    user_error("output.dir: {}", error.what());
  }
  return path;
}

}  // namespace

FileLock::FileLock(const fs::path& file) {
  descriptor_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  const std::string directory = file.parent_path().string();
  USER_CHECK(descriptor_ >= 0, "output.dir = {}: cannot be written: {}", directory, std::strerror(errno));
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  ::close(descriptor_);
  user_error("output.dir = {}: another run is writing there; wait for it or choose another output.dir", directory);
}

FileLock::~FileLock() { ::close(descriptor_); }

RunDirectory::RunDirectory(const fs::path& path, bool resume)
    : path_(created(path)), lock_(path_ / ".lock"), checkpoint_(find_latest_checkpoint(path_)) {
  if (resume) return;
  const std::string what = finished()    ? "a finished run"
                           : checkpoint_ ? str("a run that stopped at step {}", checkpoint_->state.step)
                                         : std::string();
  USER_CHECK(what.empty(), "output.dir = {}: holds {}; continue it with --resume or choose another output.dir",
             path_.string(), what);
}

bool RunDirectory::finished() const { return fs::exists(model()); }

}  // namespace stepc::train
