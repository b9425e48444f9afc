#include "train/command/memory_command.h"

#include <cstdio>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/machine_memory.h"
#include "capture/virtual/virtual_region.h"
#include "models/lora.h"
#include "train/config/parallel.h"
#include "train/machine/machine.h"
#include "train/model/adapter_choice.h"
#include "train/model/model_directory.h"
#include "train/report/progress.h"
#include "train/run/memory_need.h"
#include "train/run/run_data.h"
#include "train/run/run_saver.h"
#include "train/run/trainer.h"
#include "train/step/batches.h"
#include "train/step/local_learner.h"
#include "train/step/rank_plan.h"
#include "train/step/staged_checkpoint.h"
#include "train/step/train_step.h"
#include "train/step/training_step.h"

namespace stepc::train {
namespace {

// Planned as a run's is, and never loaded.
TrainingStep plan_step(const RunConfig& config, const ModelDirectory& directory, uint64_t& staging_bytes) {
  Progress progress = progress_on_terminal(stderr);
  // The data say whether a row may hold two documents, which attention then keeps apart.
  const Corpus corpus = read_corpus(config, directory, progress);
  const Progress::Phase phase(progress, "planning the step");
  TrainBatches batches(corpus, config.train.grad_accum, config.train.batch_size);
  std::optional<VirtualRegion> region(std::in_place);
  models::Decoder model(directory.config, models::scalar_type(config.model.compute));
  if (directory.adapter) models::add_adapters(model, *directory.adapter, 0);
  const ChosenOptimizer optimizer = choose_optimizer(config, models::trainable_parameters(model));
  TrainingStep step(model, optimizer, config.optim.clip, config.train.grad_accum,
                    engine_config(config, Mode::kFast, Capture::kVirtual));
  region.reset();
  if (saves_while_training(config))
    staging_bytes =
        staged_bytes(saved_weights(directory, model, *optimizer.optimizer), optimizer.optimizer->named_state());
  for (const int64_t seq : corpus.mixture().lengths())  // the largest is what is shown
    if (!step.capture(batches.of_length(seq, 0)))
      throw RunFailure("this step cannot be planned before it runs: the line above says why");
  return step;
}

// What a rank does with rows of the longest kind. Its picture is that of the part that needs most.
RankPlan plan_of_rank(const RunConfig& config, const ModelDirectory& directory, const Strategy& strategy) {
  Progress progress = progress_on_terminal(stderr);
  check_tensor_parallel(strategy, directory.config.num_attention_heads, directory.config.vocab_size);
  check_context_parallel(strategy, config.data.longest_row());
  const Corpus corpus = read_corpus(config, directory, progress);
  const Progress::Phase phase(progress, "planning the step");
  TrainBatches batches(corpus, config.train.grad_accum, config.train.batch_size);
  std::optional<VirtualRegion> region(std::in_place);
  models::Decoder model(directory.config, models::scalar_type(config.model.compute));
  if (directory.adapter) models::add_adapters(model, *directory.adapter, 0);
  const ChosenOptimizer optimizer = choose_optimizer(config, models::trainable_parameters(model));
  if (is_in_parts(optimizer, config.train.grad_accum)) hold_gradients(optimizer);
  region.reset();
  const Batch& batch = batches.of_length(config.data.longest_row(), 0);
  return plan_rank(capture_for_ranks(model, optimizer, config, batch), config, strategy, directory, model, optimizer);
}

int run_memory_of_rank(const RunConfig& config, const ModelDirectory& directory, const Strategy& strategy,
                       const std::filesystem::path& picture) {
  const RankPlan plan = plan_of_rank(config, directory, strategy);
  std::fputs(to_text(plan).c_str(), stdout);
  if (!picture.empty()) {
    write_file_synced(picture, memory_svg(plan));
    std::printf("picture: %s\n", picture.c_str());
  }
  return 0;
}

}  // namespace

int run_memory(RunConfig config, const std::filesystem::path& picture) {
  config = use_threads(std::move(config));
  ModelDirectory directory = open_model_directory(config.model.path);
  choose_adapter(config, directory);
  check_row_length(config, directory);
  const Strategy strategy = strategy_of(config);
  if (strategy.mesh.ranks() > 1) return run_memory_of_rank(config, directory, strategy, picture);
  uint64_t staging_bytes = 0;
  const TrainingStep step = plan_step(config, directory, staging_bytes);
  std::fputs(step.memory_text().c_str(), stdout);
  if (staging_bytes > 0)
    std::printf("staging for saves %s, beside the step's own\n", human_bytes(staging_bytes).c_str());
  if (const auto prediction = step.prediction()) std::printf("predicted time  %s\n", to_text(*prediction).c_str());
  const Stats stats = step.stats();
  const PlannedNeed need{.process = resident_process_bytes(),
                         .state = stats.state_bytes,
                         .step = stats.planned_peak_bytes,
                         .staging = staging_bytes};
  std::printf("%s\n", to_text(need).c_str());
  if (!picture.empty()) {
    write_file_synced(picture, step.memory_svg());
    std::printf("picture: %s\n", picture.c_str());
  }
  return 0;
}

}  // namespace stepc::train
