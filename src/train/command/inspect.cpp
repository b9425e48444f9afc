#include "train/command/inspect.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tensor_files.h"
#include "models/decoder_config.h"

namespace stepc::train {
namespace {
namespace fs = std::filesystem;

constexpr uint64_t kMaxConfigBytes = 16 << 20;
constexpr const char* kAdapterConfig = "adapter_config.json";

std::string row(const std::string& name, const std::string& text) { return str("  {:<13} {}\n", name, text); }

// Runs `part`, which adds its findings; a UserError is added instead.
template <class Part>
std::string answer_of(Inspection& inspection, const Part& part) {
  try {
    return part();
  } catch (const UserError& error) {
    inspection.is_good = false;
    return str("DAMAGED: {}", error.what());
  }
}

// "12.3 M in 110 tensors: 12.1 M bf16, 0.2 M f32"
std::string tensors_text(const TensorFiles& files) {
  std::map<DType, int64_t> elements;
  int64_t all = 0;
  for (const TensorFiles::Tensor& tensor : files.tensors()) {
    int64_t count = 1;
    for (const int64_t dim : tensor.shape) count *= dim;
    elements[tensor.dtype] += count;
    all += count;
  }
  std::vector<std::string> parts;
  for (const auto& [dtype, count] : elements)
    parts.push_back(str("{} {}", human_count(static_cast<double>(count)), name_of(dtype)));
  return str("{} in {} tensors: {}", human_count(static_cast<double>(all)), files.tensors().size(),
             fmt::join(parts, ", "));
}

std::string config_text(const fs::path& directory) {
  const auto config = models::DecoderConfig::from_json(read_text(directory / "config.json", kMaxConfigBytes));
  return str("{}, {} layers, hidden size {}, vocabulary {}", config.model_type, config.num_hidden_layers,
             config.hidden_size, config.vocab_size);
}

// The kinds of optimizer state and their size: "exp_avg, exp_avg_sq, master".
std::string optimizer_text(const fs::path& directory) {
  const TensorFiles files(directory, kOptimizerFiles);
  std::set<std::string> kinds;
  for (const TensorFiles::Tensor& info : files.tensors()) {
    const size_t dot = info.name.rfind('.');
    if (!info.shape.empty() && dot != std::string::npos) kinds.insert(info.name.substr(dot + 1));
  }
  return str("{}: {}", fmt::join(kinds, ", "), tensors_text(files));
}

std::string held_out_text(const TrainerState& state) {
  return state.held_out ? str(", held-out loss {:.4f} nats per byte", *state.held_out) : std::string();
}

// The weights of a model or of its trained adapter.
std::string weights_text(const fs::path& directory) {
  if (!fs::exists(directory / kAdapterConfig)) return tensors_text(TensorFiles(directory, kModelFiles));
  const TensorFiles files(directory, kAdapterFiles);
  const Json config = read_json(directory / kAdapterConfig, kMaxConfigBytes);
  return str("{}; an adapter of {}", tensors_text(files),
             json_string(config, "base_model_name_or_path", kAdapterConfig));
}

void add_model(const fs::path& directory, Inspection& inspection) {
  if (fs::exists(directory / kAdapterConfig)) {
    inspection.table += row("adapter", answer_of(inspection, [&] { return weights_text(directory); }));
    return;
  }
  inspection.table += row("model", answer_of(inspection, [&] { return config_text(directory); }));
  inspection.table += row("parameters", answer_of(inspection, [&] { return weights_text(directory); }));
}

// Whether the directory is a checkpoint, even an incomplete one: it has at least two of the files that only a
// checkpoint has.
bool is_checkpoint(const fs::path& directory) {
  if (fs::exists(directory / kManifestName)) return true;
  int found = 0;
  for (const char* name : {"trainer_state.json", "optimizer.safetensors", "run.toml"})
    found += fs::exists(directory / name) ? 1 : 0;
  return found >= 2;
}

// The newest other checkpoint of the run that shares the file, as a hard link.
std::string shares_with(const fs::path& file) {
  std::error_code ignored;
  const uint64_t names = fs::hard_link_count(file, ignored);
  if (ignored || names < 2) return {};
  const fs::path checkpoint = fs::absolute(file, ignored).parent_path();
  std::string found;
  for (fs::directory_iterator entry(checkpoint.parent_path(), ignored), end; entry != end; entry.increment(ignored)) {
    const std::string name = entry->path().filename().string();
    if (step_of_name(entry->path()) && name != checkpoint.filename() && name > found &&
        fs::equivalent(entry->path() / file.filename(), file, ignored))
      found = name;
  }
  return found;
}

// Adds a line for each file: its size, its hash, and whether they match the manifest.
void add_files(const fs::path& directory, const Manifest& manifest, Inspection& inspection) {
  inspection.table += str("  {:<44} {:>12}  {}\n", "file", "bytes", "XXH3");
  uint64_t bytes = 0, shared = 0;
  for (const auto& entry : manifest.files) {
    const std::string verdict = answer_of(inspection, [&] {
      check_hashes(directory, {manifest.step, {entry}});
      return std::string("ok");
    });
    const std::string owner = shares_with(directory / entry.first);
    inspection.table += str("  {:<44} {:>12}  {} {}{}\n", entry.first, entry.second.bytes, entry.second.xxh3, verdict,
                            owner.empty() ? std::string() : ", shared with " + owner);
    bytes += entry.second.bytes;
    if (!owner.empty()) shared += entry.second.bytes;
  }
  inspection.table += str("  {:<44} {:>12}{}\n", str("{} files", manifest.files.size()), bytes,
                          shared > 0 ? str("  {} of them shared", shared) : std::string());
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    if (name != kManifestName && !manifest.files.contains(name))
      inspection.table += str("  {:<44} not in the manifest\n", name);
  }
}

Inspection inspect_checkpoint(const fs::path& directory) {
  Inspection inspection;
  inspection.table = str("{}: a checkpoint\n", directory.string());
  Manifest manifest;
  const std::string verdict = answer_of(inspection, [&] {
    manifest = read_manifest(directory);
    return std::string();
  });
  if (!verdict.empty()) inspection.table += row("manifest", verdict);
  inspection.table += row("step", answer_of(inspection, [&] {
                            const TrainerState state = read_checkpoint(directory).state;
                            return str("{}, next sample {}, seed {}{}", state.step, state.next_sample, state.seed,
                                       held_out_text(state));
                          }));
  if (!manifest.mesh.empty())
    inspection.table += row("ranks", str("slices of {}; `stepc export` makes a model of them", manifest.mesh));
  add_model(directory, inspection);
  inspection.table += row("optimizer", answer_of(inspection, [&] { return optimizer_text(directory); }));
  if (verdict.empty()) add_files(directory, manifest, inspection);
  return inspection;
}

Inspection inspect_model(const fs::path& directory) {
  Inspection inspection;
  inspection.table = str("{}: a model\n", directory.string());
  add_model(directory, inspection);
  return inspection;
}

// Adds a line for each checkpoint.
Inspection inspect_run(const fs::path& directory, const std::vector<fs::path>& checkpoints) {
  Inspection inspection;
  inspection.table = str("{}: a run\n", directory.string());
  for (const fs::path& checkpoint : checkpoints) {
    inspection.table += row(checkpoint.filename().string(), answer_of(inspection, [&] {
                              const TrainerState state = read_checkpoint(checkpoint).state;
                              return str("step {}, every file is whole{}", state.step, held_out_text(state));
                            }));
  }
  if (fs::exists(directory / "model")) {
    inspection.table += row("model", answer_of(inspection, [&] { return weights_text(directory / "model"); }));
  }
  return inspection;
}

}  // namespace

Inspection inspect(const fs::path& directory) {
  USER_CHECK(fs::is_directory(directory), "{}: not a directory", directory.string());
  if (is_checkpoint(directory)) return inspect_checkpoint(directory);
  if (fs::exists(directory / "config.json") || fs::exists(directory / kAdapterConfig)) return inspect_model(directory);
  std::vector<fs::path> checkpoints;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const bool half_written = entry.path().filename().string().find(".tmp-") != std::string::npos;
    if (!half_written && (step_of_name(entry.path()) || is_checkpoint(entry.path())))
      checkpoints.push_back(entry.path());
  }
  std::sort(checkpoints.begin(), checkpoints.end());
  USER_CHECK(!checkpoints.empty() || fs::exists(directory / "metrics.jsonl"),
             "{}: neither a checkpoint (manifest.json), a model (config.json) nor a run is there", directory.string());
  return inspect_run(directory, checkpoints);
}

}  // namespace stepc::train
