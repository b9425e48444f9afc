#include "train/command/memory_command.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/machine_memory.h"
#include "base/text.h"
#include "capture/virtual/virtual_region.h"
#include "cost/named_target.h"
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

// Of the part that needs most, and what a step takes of time.
int print_for_target(const TrainingStep& step, const Target& target, const std::filesystem::path& picture) {
  const auto plans = step.plans_for(target);
  if (plans.empty()) throw RunFailure("this step has no plan");
  const auto& largest =
      std::ranges::max_element(plans, {}, [](const auto& part) { return part.first.needed_bytes(); })->first;
  double seconds = 0;
  for (const auto& [plan, times] : plans) {
    seconds += plan.timeline.seconds * static_cast<double>(times);
    if (plans.size() > 1)
      std::printf("%s, %s\n", &plan == &plans.front().first ? "a micro-batch" : "the update",
                  times == 1 ? "once a step" : str("{} times a step", times).c_str());
    std::fputs(plan.summary().c_str(), stdout);
  }
  if (largest.memory) std::fputs(to_text(*largest.memory).c_str(), stdout);
  std::printf("predicted time  %s a step\n", time_text(seconds).c_str());
  if (picture.empty() || !largest.memory) return 0;
  write_file_synced(picture, timeline_svg(*largest.memory, "live bytes of a training step"));
  std::printf("picture: %s\n", picture.c_str());
  return 0;
}

}  // namespace

int run_memory(RunConfig config, const std::filesystem::path& picture, const std::string& target_name) {
  std::optional<Target> target;
  if (!target_name.empty()) target = named_target(target_name);
  config = use_threads(std::move(config));
  ModelDirectory directory = open_model_directory(config.model.path);
  choose_adapter(config, directory);
  check_row_length(config, directory);
  const Strategy strategy = strategy_of(config);
  USER_CHECK(!target || strategy.mesh.ranks() == 1,
             "--target: a plan for another machine is of one device; [parallel] spreads the step over {}",
             strategy.mesh.ranks());
  if (strategy.mesh.ranks() > 1) return run_memory_of_rank(config, directory, strategy, picture);
  uint64_t staging_bytes = 0;
  const TrainingStep step = plan_step(config, directory, staging_bytes);
  if (target) return print_for_target(step, *target, picture);
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
