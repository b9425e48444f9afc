#include "train/run/run_start.h"

#include <cstdlib>
#include <optional>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "cost/target.h"
#include "plan/memory_budget.h"
#include "train/config/resume.h"
#include "train/machine/device.h"
#include "train/model/adapter_choice.h"
#include "train/model/model_directory.h"
#include "train/report/progress.h"
#include "train/run/memory_need.h"
#include "train/run/run_data.h"
#include "train/run/same_on_all.h"
#include "train/step/evaluate.h"
#include "train/step/local_learner.h"
#include "train/step/rank_learner.h"

namespace stepc::train {

namespace {

// A checkpoint is complete without the directory from which the run began. If that directory exists, it must be of the
// same model; stepc may save in another dtype (saved_dtype()).
void check_same_model(const std::string& path, const ModelDirectory& resumed) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return;
  for (const auto& [field, here, there] : read_model_config(path).differences(resumed.config))
    USER_CHECK(field == "dtype",
               "model.path = {}: another model than that of the checkpoint to resume from, {}: its {} is {}, the "
               "checkpoint's {}; give that model, or choose another output.dir",
               path, resumed.path.string(), field, here, there);
}

// Training goes on from the checkpoint's own model files.
ModelDirectory start_directory(const RunConfig& config, const RunDirectory& directory, bool trains_alone) {
  const auto& checkpoint = directory.start();
  ModelDirectory model =
      open_model_directory(checkpoint ? checkpoint->directory : std::filesystem::path(config.model.path));
  if (checkpoint) check_same_model(config.model.path, model);
  choose_adapter(config, model);
  check_row_length(config, model);
  const uint64_t file_bytes = check_weight_shapes(model);
  if (trains_alone)
    check_memory_need(model, memory_need(config, model, file_bytes), use_device("train.device", config.train.device));
  return model;
}

// A continued run keeps its plan.
std::optional<Target> resumed_target(const RunConfig& config, const RunDirectory& directory) {
  const auto& checkpoint = directory.start();
  if (!checkpoint || parse_memory_budget(config.memory.budget).kind != MemoryBudget::Kind::kAuto) return std::nullopt;
  std::optional<Target> target = saved_target(checkpoint->directory);
  if (!target || target->threads == config.train.threads) return target;
  log().warn("{}: its step was planned for {} threads, this one is weighed anew for {}", checkpoint->directory.string(),
             target->threads, config.train.threads);
  return std::nullopt;
}

}  // namespace

Output output_of(const Launch& launch, const std::string& run) {
  const auto nothing = [](std::FILE* /*file*/) {};
  if (launch.rank == 0 || std::getenv(kLauncherVariable) != nullptr) return {stdout, nothing};
  const std::filesystem::path path = make_log_directory(run) / str("rank-{}.log", launch.rank);
  std::FILE* const file = std::fopen(path.c_str(), "a");
  USER_CHECK(file != nullptr, "{}: cannot be written", path.string());
  return {file, [](std::FILE* opened) { std::fclose(opened); }};
}

std::unique_ptr<Learner> make_learner(const RunConfig& config, const RunDirectory& directory, const Strategy& strategy,
                                      const std::shared_ptr<Ranks>& ranks, const at::Device& device) {
  ModelDirectory model = start_directory(config, directory, ranks == nullptr);
  const std::optional<Target> target = resumed_target(config, directory);
  if (ranks != nullptr) return std::make_unique<RankLearner>(std::move(model), config, strategy, ranks, target, device);
  return std::make_unique<LocalLearner>(std::move(model), config, target);
}

RunDirectory open_run_directory(const std::filesystem::path& path, const Continuation& from, Ranks* ranks) {
  if (ranks == nullptr) return {path, from.resumes, from.launch};
  if (ranks->rank() > 0) {
    check_shared_directory(*ranks, path);
    const std::string run = ranks->exchange("")[0];
    return {path, ranks->exchange("")[0], run};
  }
  RunDirectory directory(path, from.resumes, from.launch);
  check_shared_directory(*ranks, path);
  ranks->exchange(directory.run());
  ranks->exchange(directory.checkpoint() ? directory.checkpoint()->directory.filename().string() : "");
  return directory;
}

std::unique_ptr<RunSnapshots> make_snapshots(const RunConfig& config, const RunDirectory& directory,
                                             const std::shared_ptr<Ranks>& ranks) {
  if (config.elastic.snapshot_every == 0) return nullptr;
  const char* const place = std::getenv("STEPC_SNAPSHOT_DIR");
  return std::make_unique<RunSnapshots>(ranks, directory.path(), directory.run(), place == nullptr ? "/dev/shm" : place,
                                        config.elastic.snapshot_copies);
}

std::string progress_text(const RunDirectory& directory) {
  const auto& checkpoint = directory.start();
  return str("{}{}", checkpoint ? str("the checkpoint of step {}", checkpoint->state.step) : "no checkpoint",
             directory.finished() ? " and a finished model" : "");
}

void check_labels(const RunConfig& config, const Corpus& corpus) {
  for (size_t i = 0; i < corpus.sources(); ++i) {
    const std::string source = config.data.weights.empty() ? "data.train" : config.data.train.at(i);
    USER_CHECK(corpus.has_labels(i),
               "{}: there is nothing to learn in it: of chats, the turns of the assistant are learned, and there are "
               "none",
               source);
  }
  USER_CHECK(corpus.held_out_windows() == 0 || has_held_out_labels(corpus, config.data.eval_windows),
             "the {} held-out windows have no label that training would learn: hold out more, or other text",
             config.data.eval_windows);
}

void check_profile(const std::filesystem::path& profile, const RunConfig& config) {
  if (profile.empty()) return;
  USER_CHECK(config.train.mode != "eager",
             "--profile {}: train.mode is \"eager\", which has no instructions; choose \"exact\" or \"fast\"",
             profile.string());
  const std::filesystem::path directory = profile.has_parent_path() ? profile.parent_path() : ".";
  std::error_code ignored;
  USER_CHECK(std::filesystem::is_directory(directory, ignored), "--profile {}: there is no directory {}",
             profile.string(), directory.string());
}

}  // namespace stepc::train
