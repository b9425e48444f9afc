#include "train/command/memory_command.h"

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "base/machine_memory.h"
#include "base/text.h"
#include "capture/virtual/virtual_region.h"
#include "cost/named_target.h"
#include "models/lora.h"
#include "passes/from_trace/functionalise.h"
#include "passes/stages/cut_batch.h"
#include "plan/plan_graph.h"
#include "plan/rank_graph.h"
#include "plan/step_state.h"
#include "plan/target_plan.h"
#include "train/config/parallel.h"
#include "train/machine/machine.h"
#include "train/model/adapter_choice.h"
#include "train/model/model_directory.h"
#include "train/report/progress.h"
#include "train/run/memory_need.h"
#include "train/run/run_data.h"
#include "train/run/trainer.h"
#include "train/step/batches.h"
#include "train/step/local_learner.h"
#include "train/step/rank_plan.h"
#include "train/step/train_step.h"
#include "train/step/training_step.h"

namespace stepc::train {
namespace {

// Plans the step as a run does, without loading weights.
Accelerated<TrainStep> plan_step(const RunConfig& config, const ModelDirectory& directory, CopiesNeed& copies) {
  Progress progress = progress_on_terminal(stderr);
  // The data say whether a row may hold two documents, which attention then keeps apart.
  const Corpus corpus = read_corpus(config, directory, progress);
  const Progress::Phase phase(progress, "planning the step");
  TrainBatches batches(corpus, config.train.micro_batches, config.train.batch_size);
  std::optional<VirtualRegion> region(std::in_place);
  models::Decoder model(directory.config, models::scalar_type(config.model.compute));
  if (directory.adapter) models::add_adapters(model, *directory.adapter, 0);
  const ChosenOptimizer optimizer = choose_optimizer(config, models::trainable_parameters(model));
  Accelerated<TrainStep> step =
      accelerated_step(model, optimizer, config, engine_config(config, Mode::kFast, Capture::kVirtual));
  region.reset();
  copies =
      copies_need(config, saved_weights(directory, model, *optimizer.optimizer), optimizer.optimizer->named_state());
  for (const int64_t seq : corpus.mixture().lengths())  // the largest is what is shown
    if (!step.capture(batches.of_length(seq, 0).all_rows()))
      throw RunFailure("this step cannot be planned before it runs: the line above says why");
  return step;
}

// Captures the run with rows of the greatest length.
CapturedRun capture_run(const RunConfig& config, const Mesh& mesh, const ModelDirectory& directory,
                        const Corpus& corpus, Progress& progress) {
  const Progress::Phase phase(progress, "capturing the step");
  TrainBatches batches(corpus, config.train.micro_batches, config.train.batch_size);
  const Batch& batch = batches.of_length(config.data.longest_row(), 0);
  return capture_run(config, directory.config, directory.adapter, step_rows(config, mesh, batch));
}

// Reports the memory of one rank; of a pipeline, one rank of each stage. The picture shows the rank that needs the
// most.
int run_memory_of_rank(const RunConfig& config, const ModelDirectory& directory, const Strategy& strategy,
                       const std::filesystem::path& picture) {
  Progress progress = progress_on_terminal(stderr);
  check_tensor_parallel(strategy, directory.config.num_attention_heads, directory.config.vocab_size);
  check_context_parallel(strategy, config.data.longest_row());
  check_pipeline(config, directory.config.num_hidden_layers);
  const CapturedRun run =
      capture_run(config, strategy.mesh, directory, read_corpus(config, directory, progress), progress);
  std::optional<Progress::Phase> phase(std::in_place, progress, "planning the step");
  const RankPlan plan = plan_rank(run, config, strategy, directory);
  phase.reset();
  std::fputs(to_text(plan).c_str(), stdout);
  if (picture.empty()) return 0;
  write_file_synced(picture, memory_svg(plan));
  std::printf("picture: %s\n", picture.c_str());
  return 0;
}

struct TargetPart {
  std::string name;
  int64_t times = 1;  // in a step
  Graph graph;
};
// The functions of a step on one device that takes micro-batches.
std::vector<TargetPart> parts_on(const Target& target, const Trace& step, int64_t micro_batches,
                                 const std::optional<Fp8Recipe>& fp8) {
  Strategy strategy;
  strategy.mesh = make_mesh({{std::string(kMicroBatchAxis), micro_batches}});
  BatchCut cut = cut_batch(rank_graph(functionalise(step), strategy, target.features, fp8));
  std::vector<TargetPart> parts;
  for (BatchCut::Round& round : cut.rounds) {
    const bool is_last = &round == &cut.rounds.back();
    parts.push_back({"a micro-batch", micro_batches, std::move(round.micro_batch)});
    parts.push_back({is_last ? "the update" : "the way uphill", 1, std::move(round.update)});
  }
  for (Graph& graph : cut.before) parts.push_back({"a count of its rows", micro_batches, std::move(graph)});
  return parts;
}

// Plans the step only for the target, not for this machine.
int run_memory_on(const Target& target, const RunConfig& config, const ModelDirectory& directory,
                  const std::filesystem::path& picture) {
  Progress progress = progress_on_terminal(stderr);
  const Corpus corpus = read_corpus(config, directory, progress);
  const Trace step = capture_run(config, {}, directory, corpus, progress).step.trace;
  const MemoryBudget budget = parse_memory_budget(config.memory.budget);
  double seconds = 0;
  uint64_t most = 0;
  std::optional<MemoryReport> of_most;
  std::optional<Progress::Phase> phase(std::in_place, progress, "planning the step");
  const auto count = [&](const TargetPlan& plan, int64_t times, uint64_t others) {
    phase.reset();
    std::fputs(plan.summary().c_str(), stdout);
    seconds += plan.timeline.seconds * static_cast<double>(times);
    if (plan.needed_bytes() + others <= most) return;
    most = plan.needed_bytes() + others;
    of_most = plan.memory;
  };
  if (is_cut(config)) {
    const std::vector<TargetPart> parts = parts_on(target, step, config.train.micro_batches, config.train.fp8());
    StepState held;
    for (const TargetPart& part : parts) held.merge(state_of(part.graph));
    for (const TargetPart& part : parts) {
      const uint64_t others = bytes_of(held) - bytes_of(state_of(part.graph));
      const TargetPlan plan = plan_for_target(part.graph, target, beside(budget, others), document_tokens(corpus));
      phase.reset();
      std::printf("%s, %lld a step\n", part.name.c_str(), static_cast<long long>(part.times));
      count(plan, part.times, others);
    }
  } else {
    count(plan_for_target(step, target, false, budget, document_tokens(corpus), config.train.fp8()), 1, 0);
  }
  std::fputs(to_text(of_most.value()).c_str(), stdout);
  std::printf("predicted time  %s a step\na step takes %s\n", time_text(seconds).c_str(),
              beside_memory_of(target, most).c_str());
  if (picture.empty()) return 0;
  write_file_synced(picture, timeline_svg(*of_most, "live bytes of a training step"));
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
  USER_CHECK(!is_searched(config),
             "parallel.strategy = \"auto\" is chosen when the run starts: give its axes, or --parallel.strategy=given");
  const Strategy strategy = strategy_of(config);
  USER_CHECK(!target || strategy.mesh.ranks() == 1,
             "--target: a plan for another machine is of one device; [parallel] spreads the step over {}",
             strategy.mesh.ranks());
  if (strategy.mesh.ranks() > 1) return run_memory_of_rank(config, directory, strategy, picture);
  if (target) return run_memory_on(*target, config, directory, picture);
  PlannedNeed need;
  const Accelerated<TrainStep> step = plan_step(config, directory, need.copies);
  std::fputs(step.memory_text().c_str(), stdout);
  if (const uint64_t staging = need.copies.staging)
    std::printf("staging for saves %s, beside the step's own\n", human_bytes(staging).c_str());
  if (const auto prediction = step.prediction()) std::printf("predicted time  %s\n", to_text(*prediction).c_str());
  const Stats stats = step.stats();
  need.process = resident_process_bytes();
  need.state = stats.state_bytes;
  need.step = stats.planned_peak_bytes;
  std::printf("%s\n", to_text(need).c_str());
  if (!picture.empty()) {
    write_file_synced(picture, step.memory_svg());
    std::printf("picture: %s\n", picture.c_str());
  }
  return 0;
}

}  // namespace stepc::train
