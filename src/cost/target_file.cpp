#include "cost/target_file.h"

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
    return target;
  } catch (const UserError& error) {
    user_error("{}: {}; measure again with `stepc calibrate`", path.string(), error.what());
  }
}

void keep_target(const std::filesystem::path& directory, const Target& target) {
  make_directories(directory);
  write_file_synced(target_file(directory, target.threads), to_text(target));
}

}  // namespace stepc
