#include "train/config/resume.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/check.h"
#include "base/files.h"
#include "train/config/run_config_keys.h"

namespace stepc::train {
namespace {

constexpr const char* kFile = "run.toml";
constexpr const char* kTargetFile = "target.toml";
constexpr uint64_t kMostText = uint64_t{1} << 20;
constexpr std::array<std::string_view, 8> kFixed = {"model.compute",    "data.seq_len",        "data.buckets",
                                                    "train.batch_size", "train.micro_batches", "train.seed",
                                                    "optim.name",       "optim.master_weights"};

}  // namespace

void save_run_config(const std::filesystem::path& checkpoint, const RunConfig& config, FileSystem& files) {
  write_file_synced(checkpoint / kFile, to_toml(config), files);
}

RunConfig saved_run_config(const std::filesystem::path& checkpoint) {
  return load_run_config((checkpoint / kFile).string(), {}, /*is_saved=*/true);
}

void save_target(const std::filesystem::path& checkpoint, const Target& target, FileSystem& files) {
  write_file_synced(checkpoint / kTargetFile, to_text(target), files);
}

std::optional<Target> saved_target(const std::filesystem::path& checkpoint) {
  const std::filesystem::path path = checkpoint / kTargetFile;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  try {
    return parse_target(read_text(path, kMostText));
  } catch (const UserError& error) {
    user_error("{}: {}", path.string(), error.what());
  }
}

void save_origin(const std::filesystem::path& checkpoint, const RunConfig& config, const std::optional<Target>& target,
                 FileSystem& files) {
  save_run_config(checkpoint, config, files);
  if (target) save_target(checkpoint, *target, files);
}

std::vector<std::string> check_resumed_config(const std::filesystem::path& checkpoint, const RunConfig& config) {
  const RunConfig before = saved_run_config(checkpoint);
  std::vector<std::string> changes;
  for (const Key& key : run_config_keys()) {
    const std::string was = value_text(key, before);
    const std::string now = value_text(key, config);
    if (was == now || section_of(key) == "output") continue;
    USER_CHECK(std::ranges::count(kFixed, key.name) == 0 && section_of(key) != "lora",
               "{} = {}: the checkpoint to resume from has {}; give that, or choose another output.dir", key.name, now,
               was);
    changes.push_back(str("{} = {} (was {})", key.name, now, was));
  }
  return changes;
}

}  // namespace stepc::train
