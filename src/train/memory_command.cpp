#include "train/memory_command.h"

#include <cstdio>
#include <optional>
#include <utility>

#include <ATen/Parallel.h>

#include "base/check.h"
#include "base/files.h"
#include "engine/compile.h"
#include "engine/virtual_door.h"
#include "memory/report.h"
#include "models/lora.h"
#include "train/adapter_choice.h"
#include "train/batches.h"
#include "train/kernel_directory.h"
#include "train/learner.h"
#include "train/machine.h"
#include "train/memory_need.h"
#include "train/model_directory.h"
#include "train/run_data.h"
#include "train/run_saver.h"
#include "train/staged_checkpoint.h"
#include "train/train_step.h"
#include "train/trainer.h"

namespace stepc::train {
namespace {

struct PlannedRun {
  VirtualPlan step;
  uint64_t staging_bytes = 0;  // a copy of the state, from which saves are written beside the training
};

PlannedRun plan_run(const RunConfig& config) {
  ModelDirectory directory = open_model_directory(config.model.path);
  choose_adapter(config, directory);
  // The data say whether a row may hold two documents, which attention then keeps apart.
  const Corpus corpus = read_corpus(config, directory);
  TrainBatches batches(corpus, config.train.grad_accum, config.train.batch_size);
  const Batch& batch = batches.of_step(0);
  std::optional<VirtualRegion> region(std::in_place);
  models::Decoder model(directory.config, models::scalar_type(config.model.compute));
  if (directory.adapter) models::add_adapters(model, *directory.adapter, 0);
  const ChosenOptimizer optimizer = choose_optimizer(config, models::trainable_parameters(model));
  region.reset();
  PlannedRun run;
  if (saves_while_training(config))
    run.staging_bytes =
        staged_bytes(saved_weights(directory, model, *optimizer.optimizer), optimizer.optimizer->named_state());
  run.step =
      plan(make_train_step(model, optimizer, config.optim.clip), {model}, {optimizer.optimizer}, batch.tensors());
  return run;
}

}  // namespace

int run_memory(RunConfig config, const std::filesystem::path& picture) {
  config = use_threads(std::move(config));
  const MemoryBudget budget = parse_memory_budget(config.memory.budget);
  const PlannedRun run = plan_run(config);
  const VirtualPlan& captured = run.step;
  if (!captured.obstacle.empty()) throw RunFailure(str("this step runs eagerly: {}", captured.obstacle));
  KernelSources kernels(kernel_directory());
  const GraphSchedule planned = plan_fast(captured.trace, kernels, {at::get_num_threads(), budget});
  const MemoryReport& report = planned.memory;
  std::fputs(to_text(report).c_str(), stdout);
  if (run.staging_bytes > 0)
    std::printf("staging for saves %s, beside the step's own\n", human_bytes(run.staging_bytes).c_str());
  const PlannedNeed need{.process = resident_process_bytes(),
                         .state = captured.state_bytes(),
                         .step = planned.schedule.peak_bytes(),
                         .staging = run.staging_bytes};
  std::printf("%s\n", to_text(need).c_str());
  if (!picture.empty()) {
    write_file_synced(picture, timeline_svg(report, "live bytes of a training step"));
    std::printf("picture: %s\n", picture.c_str());
  }
  return 0;
}

}  // namespace stepc::train
