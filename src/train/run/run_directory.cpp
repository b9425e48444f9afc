#include "train/run/run_directory.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <string>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/check.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"

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

FileLock::Left FileLock::left() const {
  std::array<char, 512> text = {};
  const ssize_t read = ::pread(descriptor_, text.data(), text.size(), 0);
  const std::string all(text.data(), static_cast<size_t>(std::max<ssize_t>(read, 0)));
  const std::string launch = first_line(all);
  return {launch, launch.size() < all.size() ? first_line(all.substr(launch.size() + 1)) : std::string()};
}

// A full disk is reported elsewhere.
void FileLock::leave(const Left& lines) const {
  const std::string text = str("{}\n{}\n", first_line(lines.launch), first_line(lines.run));
  if (::ftruncate(descriptor_, 0) != 0 || ::pwrite(descriptor_, text.data(), text.size(), 0) < 0) return;
}

fs::path make_log_directory(const fs::path& run) { return created(run / "logs"); }

RunDirectory::RunDirectory(fs::path path, const std::string& found, std::string run)
    : path_(std::move(path)), run_(std::move(run)) {
  if (!found.empty()) checkpoint_ = read_checkpoint(path_ / found, CheckedBy::kSizes);
}

RunDirectory::RunDirectory(const fs::path& path, bool resume, const std::string& launch) : path_(created(path)) {
  lock_ = std::make_unique<FileLock>(path_ / ".lock");
  const FileLock::Left left = lock_->left();
  if (!launch.empty() && left.launch == launch) resume = true;
  const CheckpointSearch search = search_checkpoints(path_);
  checkpoint_ = search.latest;
  USER_CHECK(checkpoint_ || search.damaged.empty(),
             "output.dir = {}: no checkpoint in it is whole ({}); put a good one back, or move them away to start at "
             "step 0",
             path_.string(), search.damaged.front());
  for (const std::string& why : search.damaged) log().warn("skipping a damaged checkpoint: {}", why);
  refuse_foreign_names(search);
  if (resume) {
    USER_CHECK(checkpoint_ || !finished(),
               "output.dir = {}: holds {}, but no checkpoint to continue from; move it away or choose another "
               "output.dir",
               path_.string(), model().filename().string());
    leave_name(launch, left.run);
    return;
  }
  const std::string what = finished()    ? "a finished run"
                           : checkpoint_ ? str("a run that stopped at step {}", checkpoint_->state.step)
                                         : std::string();
  USER_CHECK(what.empty(), "output.dir = {}: holds {}; continue it with --resume or choose another output.dir",
             path_.string(), what);
  leave_name(launch, {});
}

void RunDirectory::leave_name(const std::string& launch, const std::string& run) {
  std::random_device draw;
  run_ = run.empty() ? hash_text(uint64_t{draw()} << 32 | draw()) : run;
  lock_->leave({launch, run_});
}

// Otherwise the save of such a step would fail, after all the steps before it.
void RunDirectory::refuse_foreign_names(const CheckpointSearch& search) const {
  const int64_t done = checkpoint_ ? checkpoint_->state.step : 0;
  for (const auto& [step, why] : search.foreign)
    USER_CHECK(step <= done,
               "output.dir = {}: what is there for step {} is not stepc's own, or lost its manifest ({}); move it away "
               "or choose another output.dir",
               path_.string(), step, why);
}

bool RunDirectory::finished() const { return fs::exists(model()); }

}  // namespace stepc::train
