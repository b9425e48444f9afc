#include "data/shard/known_sets.h"

#include <ctime>

#include <sys/stat.h>

#include "base/check.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/text.h"

namespace stepc {

namespace fs = std::filesystem;

KnownSet::KnownSet(const fs::path& directory, const std::vector<fs::path>& files, uint64_t salt) {
  constexpr time_t kSettledSeconds = 2;
  std::string key = hash_text(salt);
  const time_t now = std::time(nullptr);
  for (const fs::path& file : files) {
    struct stat info = {};
    if (::stat(file.c_str(), &info) != 0) settled_ = false;  // who opens it says why
    key += str("\n{} {} {} {} {}.{} {}.{}", fs::absolute(file).string(), info.st_dev, info.st_ino, info.st_size,
               info.st_mtim.tv_sec, info.st_mtim.tv_nsec, info.st_ctim.tv_sec, info.st_ctim.tv_nsec);
    if (now - std::max(info.st_mtim.tv_sec, info.st_ctim.tv_sec) < kSettledSeconds) settled_ = false;
  }
  path_ = directory / (hash_text(hash_bytes(std::as_bytes(std::span(key)))) + ".set");
}

std::optional<std::vector<std::string>> KnownSet::shards() const {
  constexpr uint64_t kMaxBytes = uint64_t{64} << 20;
  std::error_code error;
  if (!fs::exists(path_, error)) return std::nullopt;
  std::vector<std::string> names;
  for (const std::string& name : split(trim(read_text(path_, kMaxBytes)), '\n')) {
    // A name from a file is a name in this directory and nothing else.
    if (name.empty() || name.find('/') != std::string::npos) return std::nullopt;
    names.push_back(name);
  }
  return names;
}

void KnownSet::remember(const std::vector<std::string>& shards) const {
  if (settled_) write_file_synced(path_, str("{}\n", fmt::join(shards, "\n")));
}

}  // namespace stepc
