#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/check.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/manifest.h"

namespace stepc {

namespace fs = std::filesystem;

namespace {
constexpr const char* kStateName = "trainer_state.json";
constexpr const char* kPrefix = "checkpoint-";
constexpr const char* kModel = "model";  // the trained model beside the checkpoints
constexpr const char* kTemporary = ".tmp-";
constexpr uint64_t kMaxStateBytes = 1 << 20;

fs::path directory_of(const fs::path& output, int64_t step) { return output / str("{}{:06}", kPrefix, step); }

uint64_t uint64_of(const Json& json, const std::string& key, const std::string& what) {
  const std::string& text = json_string(json, key, what);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  USER_CHECK(error == std::errc() && end == text.data() + text.size(),
             "{}: {} must be a 64-bit number in text, found {}", what, in_quotes(key), in_quotes(text));
  return value;
}

TrainerState read_state(const fs::path& path) {
  const std::string what = path.string();
  const Json json = read_json(path, kMaxStateBytes);
  TrainerState state;
  state.step = json_int(json, "step", what, 0, INT64_MAX);
  state.next_sample = json_int(json, "next_sample", what, 0, INT64_MAX);
  state.seed = uint64_of(json, "seed", what);
  state.data_hash = uint64_of(json, "data_hash", what);
  if (json.contains("held_out_nats_per_byte")) {
    const Json& loss = json["held_out_nats_per_byte"];
    USER_CHECK(loss.is_number(), "{}: held_out_nats_per_byte must be a number, found {}", what, shown(loss));
    state.held_out = loss.get<double>();
  }
  return state;
}

// Everything whose name starts so, in order of name.
std::vector<fs::path> list_names(const fs::path& output, std::string_view start) {
  std::vector<fs::path> found;
  std::error_code error;
  fs::directory_iterator entry(output, error);
  if (error == std::errc::no_such_file_or_directory) return found;
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    if (entry->path().filename().string().starts_with(start)) found.push_back(entry->path());
  USER_CHECK(!error, "cannot list {}: {}", output.string(), error.message());
  std::sort(found.begin(), found.end());
  return found;
}

// Checkpoints by their names, complete or not.
std::vector<fs::path> list_directories(const fs::path& output, std::string_view start = kPrefix) {
  std::vector<fs::path> found = list_names(output, start);
  std::error_code ignored;
  std::erase_if(found, [&](const fs::path& path) { return !fs::is_directory(path, ignored); });
  return found;
}

// A directory that somebody else made, or whose manifest is gone, may hold what exists nowhere else.
void check_replaceable(const fs::path& directory) {
  std::error_code ignored;
  if (fs::symlink_status(directory, ignored).type() == fs::file_type::not_found) return;
  try {
    read_manifest(directory);
  } catch (const UserError& error) {
    user_error("{} is no checkpoint that may be replaced: {}", directory.string(), error.what());
  }
}

bool is_temporary(const fs::path& directory) {
  return directory.filename().string().find(kTemporary) != std::string::npos;
}

// A checkpoint or a model that a process which is gone was writing.
bool is_abandoned(const fs::path& directory) {
  const std::string name = directory.filename().string();
  const size_t at = name.find(kTemporary);
  if (at == std::string::npos) return false;
  const std::string written = name.substr(0, at);
  if (written != kModel && !step_of_name(written)) return false;
  const std::string_view digits = std::string_view(name).substr(at + std::string_view(kTemporary).size());
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), pid);
  if (error != std::errc() || end != digits.data() + digits.size() || pid <= 0) return false;
  return ::kill(pid, 0) != 0 && errno == ESRCH;
}

struct Candidate {
  fs::path directory;
  Manifest manifest;
};

// Directories with a readable manifest, most steps first; `skipped` is told why another is not one.
template <class Skipped>
std::vector<Candidate> list_candidates(const fs::path& output, const Skipped& skipped) {
  std::vector<Candidate> candidates;
  for (const auto& directory : list_directories(output)) {
    if (is_temporary(directory)) continue;
    try {
      candidates.push_back({directory, read_manifest(directory)});
    } catch (const UserError& error) {
      skipped(error);
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.manifest.step > b.manifest.step; });
  return candidates;
}

Checkpoint verified(const fs::path& directory, const Manifest& manifest, CheckedBy how = CheckedBy::kHashes) {
  USER_CHECK(manifest.files.contains(kStateName), "{}: the manifest lacks {}", directory.string(), kStateName);
  how == CheckedBy::kHashes ? check_hashes(directory, manifest) : check_sizes(directory, manifest);
  check_mesh(directory, manifest);
  Checkpoint checkpoint{directory, read_state(directory / kStateName)};
  USER_CHECK(checkpoint.state.step == manifest.step, "{}: {} is of step {}, the manifest of step {}",
             directory.string(), kStateName, checkpoint.state.step, manifest.step);
  return checkpoint;
}
}  // namespace

CheckpointWriter::CheckpointWriter(const fs::path& output, const TrainerState& state, FileSystem& files)
    : state_(state),
      files_(files),
      transaction_(directory_of(output, state.step), DirectoryTransaction::Existing::kReplace, files) {
  check_replaceable(transaction_.final_path());
}

// Numbers above 2^53 go as text: other readers of JSON keep numbers as doubles.
void write_trainer_state(const fs::path& directory, const TrainerState& state, FileSystem& files) {
  nlohmann::ordered_json json = {{"step", state.step},
                                 {"next_sample", state.next_sample},
                                 {"seed", std::to_string(state.seed)},
                                 {"data_hash", std::to_string(state.data_hash)}};
  if (state.held_out) json["held_out_nats_per_byte"] = *state.held_out;
  write_file_synced(directory / kStateName, json.dump(2) + "\n", files);
}

fs::path CheckpointWriter::commit(const ManifestFiles& known, const std::string& mesh) {
  write_trainer_state(path(), state_, files_);
  Manifest manifest = make_manifest(path(), state_.step, known);
  manifest.mesh = mesh;
  write_manifest(path(), manifest, files_);
  check_replaceable(transaction_.final_path());
  transaction_.commit();
  return transaction_.final_path();
}

Checkpoint read_checkpoint(const fs::path& directory, CheckedBy how) {
  return verified(directory, read_manifest(directory), how);
}

std::optional<int64_t> step_of_name(const fs::path& directory) {
  const std::string name = directory.filename().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = std::string_view(name).substr(std::string_view(kPrefix).size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  const bool is_number = error == std::errc() && end == digits.data() + digits.size() && step >= 0;
  return is_number && directory_of({}, step) == name ? std::optional(step) : std::nullopt;
}

CheckpointSearch search_checkpoints(const fs::path& output) {
  CheckpointSearch search;
  for (const auto& path : list_names(output, kPrefix)) {
    const auto step = step_of_name(path);
    if (!step) continue;
    try {
      read_manifest(path);
    } catch (const UserError& error) {
      search.foreign.push_back({*step, error.what()});
    }
  }
  for (const auto& candidate : list_candidates(output, [](const UserError&) {})) {
    try {
      search.latest = verified(candidate.directory, candidate.manifest);
      break;
    } catch (const UserError& error) {
      search.damaged.emplace_back(error.what());
    }
  }
  return search;
}

fs::path newest_directory(const fs::path& output) {
  const std::vector<Candidate> all = list_candidates(output, [](const UserError&) {});
  return all.empty() ? fs::path() : all.front().directory;
}

std::optional<Checkpoint> find_latest_checkpoint(const fs::path& output) {
  const CheckpointSearch search = search_checkpoints(output);
  // Each names its file.
  for (const auto& foreign : search.foreign) log().warn("skipping a damaged checkpoint: {}", foreign.why);
  for (const auto& damaged : search.damaged) log().warn("skipping a damaged checkpoint: {}", damaged);
  return search.latest;
}

void prune_checkpoints(const fs::path& output, const Retention& retention, FileSystem& files) {
  INTERNAL_CHECK_LE(1, retention.last);
  // A damaged one does not count, so that it never takes the place of the last good one; it is left to be looked at.
  std::vector<Checkpoint> whole;
  for (const auto& [directory, manifest] : list_candidates(output, [](const UserError&) {})) {
    if (step_of_name(directory) != manifest.step) continue;
    try {
      check_sizes(directory, manifest);
      whole.push_back({directory, read_state(directory / kStateName)});
    } catch (const UserError&) {
    }
  }
  const auto best = std::min_element(whole.begin(), whole.end(), [](const Checkpoint& a, const Checkpoint& b) {
    return a.state.held_out && (!b.state.held_out || *a.state.held_out < *b.state.held_out);
  });
  for (auto checkpoint = whole.begin(); checkpoint != whole.end(); ++checkpoint) {
    const bool is_new = checkpoint - whole.begin() < retention.last;
    const bool is_every = retention.every > 0 && checkpoint->state.step % retention.every == 0;
    const bool is_best = retention.best && checkpoint == best && checkpoint->state.held_out;
    if (is_new || is_every || is_best) continue;
    // Out of sight first, durably: a removal that is cut short must not leave half a checkpoint under its name.
    fs::path aside = checkpoint->directory;
    aside += str("{}{}", kTemporary, ::getpid());
    remove_tree(aside, files);
    const int error = files.rename(checkpoint->directory, aside);
    USER_CHECK(error == 0, "cannot remove {}: {}", checkpoint->directory.string(),
               std::generic_category().message(error));
    sync_directory(output, files);
    remove_tree(aside, files);
  }
  remove_abandoned(output, files);
}

void remove_abandoned(const fs::path& output, FileSystem& files) {
  for (const std::string_view start : {kPrefix, kModel})
    for (const auto& directory : list_directories(output, start))
      if (is_abandoned(directory)) remove_tree(directory, files);
}

}  // namespace stepc
