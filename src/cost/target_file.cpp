#include "cost/target_file.h"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/check.h"
#include "base/files.h"
#include "base/text.h"

namespace stepc {

namespace {
constexpr uint64_t kMostText = uint64_t{1} << 20;
}  // namespace

std::filesystem::path target_file(const std::filesystem::path& directory, int threads) {
  return directory / str("target-{}-thread{}.toml", threads, threads == 1 ? "" : "s");
}

std::optional<Target> kept_target(const std::filesystem::path& directory, int threads) {
  if (directory.empty()) return std::nullopt;
  const std::filesystem::path path = target_file(directory, threads);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  try {
    Target target = parse_target(read_text(path, kMostText));
    USER_CHECK(target.threads == threads, "target: threads = {}, where the file's name says {}", target.threads,
               threads);
    // The last that is written; older versions knew none.
    USER_CHECK(!target.rates.calls.empty(), "target: calls is missing: an older version's, or the file is cut short");
    return target;
  } catch (const UserError& error) {
    user_error("{}: {}; measure again with `stepc calibrate`", path.string(), error.what());
  }
}

void keep_target(const std::filesystem::path& directory, const Target& target) {
  make_directories(directory);
  write_file_synced(target_file(directory, target.threads), to_text(target));
}

MeasuringHere::MeasuringHere(const std::filesystem::path& directory, int threads) {
  make_directories(directory);
  { const FileWriter can_be_written(target_file(directory, threads)); }
  directory_ = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const auto fail = [&](const std::string& why) {
    if (directory_ >= 0) ::close(directory_);
    user_error("{}: {}", directory.string(), why);
  };
  if (directory_ < 0) fail(str("cannot open it: {}", std::generic_category().message(errno)));
  if (::flock(directory_, LOCK_EX | LOCK_NB) == 0) return;
  if (errno == EWOULDBLOCK) fail("another calibration runs for this directory; begin this one when it has ended");
  fail(str("cannot lock it: {}", std::generic_category().message(errno)));
}
MeasuringHere::~MeasuringHere() { ::close(directory_); }

}  // namespace stepc
