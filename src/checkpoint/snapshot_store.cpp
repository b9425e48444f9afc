#include "checkpoint/snapshot_store.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/check.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"

namespace stepc {

namespace fs = std::filesystem;

namespace {
constexpr const char* kRunName = "run";
constexpr const char* kWholeName = "whole";
constexpr std::string_view kPartPrefix = "rank-";
constexpr std::string_view kSparePrefix = "spare-";
constexpr uint64_t kMostRunText = 4096;
constexpr mode_t kOwnDirectory = 0700;
constexpr fs::perms kOwnFile = fs::perms::owner_read | fs::perms::owner_write;

// The directory, made where it is missing, is this user's, and nobody else looks into it.
void make_own_directory(const fs::path& path) {
  if (::mkdir(path.c_str(), kOwnDirectory) != 0 && errno != EEXIST)
    user_error("snapshots: {} cannot be made: {}", path.string(), std::strerror(errno));
  struct stat found {};
  USER_CHECK(::lstat(path.c_str(), &found) == 0, "snapshots: {}: {}", path.string(), std::strerror(errno));
  const bool is_own = S_ISDIR(found.st_mode) && found.st_uid == ::geteuid() && (found.st_mode & 077) == 0;
  USER_CHECK(is_own,
             "snapshots: {} is not a directory of this user alone: remove it, or give another place as "
             "STEPC_SNAPSHOT_DIR",
             path.string());
}

template <class Number>
std::optional<Number> number_of(std::string_view digits, int base = 10) {
  Number number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number, base);
  return error == std::errc() && end == digits.data() + digits.size() ? std::optional(number) : std::nullopt;
}

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (fs::directory_iterator entry(directory, ignored), end; entry != end; entry.increment(ignored))
    names.push_back(entry->path().filename().string());
  std::ranges::sort(names);
  return names;
}

std::string part_name(int64_t rank) { return str("{}{:05}", kPartPrefix, rank + 1); }

// -1: no part is called so.
int64_t rank_of(const std::string& name) {
  if (!name.starts_with(kPartPrefix)) return -1;
  const auto number = number_of<int64_t>(std::string_view(name).substr(kPartPrefix.size()));
  return number && *number >= 1 && part_name(*number - 1) == name ? *number - 1 : -1;
}

}  // namespace

SnapshotStore::SnapshotStore(const fs::path& memory, const fs::path& output, FileSystem* files)
    : files_(files == nullptr ? own_files_ : *files), memory_(memory) {
  USER_CHECK(fs::is_directory(memory), "snapshots: there is no directory {}: give one in memory as STEPC_SNAPSHOT_DIR",
             memory.string());
  const fs::path of_user = memory / str("stepc-{}", ::geteuid());
  make_own_directory(of_user);
  std::error_code error;
  fs::path canonical = fs::weakly_canonical(output, error);
  if (error) canonical = output;
  const std::string text = canonical.string();
  path_ = of_user / hash_text(hash_bytes(std::as_bytes(std::span(text))));
}

std::string SnapshotStore::run() const {
  std::error_code ignored;
  if (!fs::exists(path_ / kRunName, ignored)) return {};
  return first_line(read_text(path_ / kRunName, kMostRunText));
}

void SnapshotStore::claim(const std::string& run) {
  if (run == this->run()) return;
  remove();
  make_own_directory(path_.parent_path());
  make_own_directory(path_);
  write_file_synced(path_ / kRunName, run + "\n", files_);
}

std::string SnapshotStore::name_of(int64_t step, uint64_t attempt) {
  return str("{:09}-{:08x}", step, attempt & 0xffffffff);
}

int64_t SnapshotStore::step_of(const std::string& snapshot) {
  const size_t dash = snapshot.find('-');
  if (dash == std::string::npos) return -1;
  const auto step = number_of<int64_t>(std::string_view(snapshot).substr(0, dash));
  const auto attempt = number_of<uint64_t>(std::string_view(snapshot).substr(dash + 1), 16);
  return step && attempt && *step >= 0 && name_of(*step, *attempt) == snapshot ? *step : -1;
}

fs::path SnapshotStore::part(const std::string& snapshot, int64_t rank) const {
  INTERNAL_CHECK(step_of(snapshot) >= 0, "no snapshot is called {}", snapshot);
  return path_ / snapshot / part_name(rank);
}

fs::path SnapshotStore::make_part(const std::string& snapshot, int64_t rank) {
  fs::path made = part(snapshot, rank);
  remove_tree(made, files_);
  make_directories(made, files_);
  return made;
}

// It counts no more before anything of it is written over.
fs::path SnapshotStore::move_part(const fs::path& from, const std::string& snapshot, int64_t rank) {
  const auto check = [](int error, const fs::path& path) {
    USER_CHECK(error == 0, "snapshots: {}: {}: what a run has there is its own as long as it runs", path.string(),
               std::strerror(error));
  };
  const int unlinked = files_.unlink(from / kManifestName);
  check(unlinked == ENOENT ? 0 : unlinked, from / kManifestName);
  fs::path to = part(snapshot, rank);
  remove_tree(to, files_);
  make_directories(to.parent_path(), files_);
  check(files_.rename(from, to), from);
  files_.remove_directory(from.parent_path());  // where it was the last part there
  return to;
}

fs::path SnapshotStore::make_spare(int64_t rank) {
  fs::path made = path_ / str("{}{:05}", kSparePrefix, rank + 1);
  remove_tree(made, files_);
  make_directories(made, files_);
  return made;
}

void SnapshotStore::finish_part(const std::string& snapshot, int64_t rank, const Manifest& manifest) {
  const fs::path directory = part(snapshot, rank);
  for (const auto& [name, file] : manifest.files) {
    std::error_code error;
    fs::permissions(directory / name, kOwnFile, error);
    USER_CHECK(!error, "{}: {}", (directory / name).string(), error.message());
  }
  write_manifest(directory, manifest, files_);
}

std::vector<SnapshotStore::Part> SnapshotStore::parts() const {
  std::vector<Part> parts;
  for (const std::string& snapshot : names_in(path_)) {
    if (step_of(snapshot) < 0) continue;
    for (const std::string& name : names_in(path_ / snapshot)) {
      const int64_t rank = rank_of(name);
      if (rank < 0) continue;
      try {
        Part part{snapshot, rank, read_manifest(path_ / snapshot / name)};
        if (part.manifest.step == step_of(snapshot)) parts.push_back(std::move(part));
      } catch (const UserError&) {  // NOLINT(bugprone-empty-catch): whoever wrote it was killed
      }
    }
  }
  return parts;
}

bool SnapshotStore::is_intact(const Part& part) const {
  try {
    check_hashes(this->part(part.snapshot, part.rank), part.manifest);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

fs::path SnapshotStore::whole(const std::string& snapshot) const { return path_ / snapshot / kWholeName; }

void SnapshotStore::assemble(const std::vector<Part>& parts) {
  INTERNAL_CHECK(!parts.empty(), "a snapshot without parts");
  Manifest manifest = parts[0].manifest;
  manifest.files.clear();
  const fs::path directory = whole(parts[0].snapshot);
  remove_tree(directory);
  make_directories(directory, files_);
  for (const Part& one : parts)
    for (const auto& [name, file] : one.manifest.files) {
      USER_CHECK(manifest.files.emplace(name, file).second, "snapshots: {}: two ranks have a file {}",
                 directory.string(), in_quotes(name));
      std::error_code error;
      fs::create_hard_link(part(one.snapshot, one.rank) / name, directory / name, error);
      USER_CHECK(!error, "{}: {}", (directory / name).string(), error.message());
    }
  write_manifest(directory, manifest, files_);
}

void SnapshotStore::keep(const std::vector<std::string>& snapshots) const {
  for (const std::string& name : names_in(path_))
    if (name != kRunName && std::ranges::count(snapshots, name) == 0) remove_tree(path_ / name);
}

void SnapshotStore::forget(const std::string& snapshot) const {
  if (!snapshot.empty()) remove_tree(path_ / snapshot);
}

void SnapshotStore::remove() const {
  remove_tree(path_);
  ::rmdir(path_.parent_path().c_str());  // where it was the last one
}

uint64_t SnapshotStore::free_bytes() const {
  struct statvfs found {};
  if (::statvfs(memory_.c_str(), &found) != 0) return 0;
  return uint64_t{found.f_bavail} * found.f_frsize;
}

uint64_t SnapshotStore::taken_bytes() const {
  uint64_t bytes = 0;
  std::error_code ignored;
  for (fs::recursive_directory_iterator entry(path_, ignored), end; entry != end; entry.increment(ignored))
    // What has a second name in whole/ is there once.
    if (entry->is_regular_file(ignored) && entry->path().parent_path().filename() != kWholeName)
      bytes += entry->file_size(ignored);
  return bytes;
}

}  // namespace stepc
