#include "train/step/rank_plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "capture/virtual/virtual_region.h"
#include "comm/ranks.h"
#include "cost/profile.h"
#include "engine/plan/compile.h"
#include "engine/ranks/sharded_state.h"
#include "engine/virtual_door.h"
#include "models/lora.h"
#include "ops/communication.h"
#include "passes/partition/partition.h"
#include "passes/partition/shardings/sharding_report.h"
#include "plan/step_state.h"
#include "runtime/kernel_sources.h"
#include "train/config/parallel.h"
#include "train/machine/kernel_directory.h"
#include "train/run/trainer.h"
#include "train/step/model_slices.h"
#include "train/step/train_step.h"

namespace stepc::train {

namespace {

std::vector<at::Tensor> with_micro_batches(const std::vector<at::Tensor>& tensors, int64_t count) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& tensor : tensors) out.push_back(tensor.unflatten(0, {count, tensor.size(0) / count}));
  return out;
}

class RankPlanner {
 public:
  RankPlanner(const RunConfig& config, const Strategy& strategy)
      : kernels_(kernel_directory()),
        state_(strategy.mesh, Ranks::threads(1)[0]),
        known_(known_target(kernel_directory(), features_of(kernels_.micro_kernels),
                            static_cast<int>(config.train.threads))) {
    options_.target = known_.target;
    options_.budget = parse_memory_budget(config.memory.budget);
    options_.strategy = strategy;
  }

  // What the first rank has: alone, for there is nothing to exchange in a plan.
  [[nodiscard]] const ShardedState& state() const { return state_; }

  [[nodiscard]] const Strategy& strategy() const { return options_.strategy; }
  void keep_parameters(const Graph& local) { stepc::keep_parameters(options_.strategy, local); }

  RankPart plan(const std::string& name, int64_t times, const VirtualPlan& captured) {
    PlannedGraph planned = plan_fast(captured.trace, kernels_, options_);
    if (options_.strategy.context == Context::kByPrice) options_.strategy.context = planned.context;
    const Prediction prediction = predict(planned.plan.schedule, known_);
    state_.add(planned.plan.schedule);
    return {name, times, std::move(planned.graph), std::move(planned.plan.memory), prediction};
  }

 private:
  KernelSources kernels_;
  ShardedState state_;
  KnownTarget known_;
  CompileOptions options_;
};

const RankPart& larger_part(const RankPlan& plan) {
  return *std::ranges::max_element(plan.parts, {}, [](const RankPart& part) { return part.memory.peak_bytes; });
}

}  // namespace

std::vector<at::Tensor> with_rows_first(const Batch& batch) {
  std::vector<at::Tensor> tensors = batch.tensors();
  for (at::Tensor& tensor : tensors) tensor = tensor.flatten(0, 1);
  return tensors;
}

std::vector<CapturedPart> capture_parts(models::Decoder model, const ChosenOptimizer& optimizer,
                                        const RunConfig& config, const Batch& batch) {
  const std::vector<ModuleRef> modules = {model};
  const std::vector<OptimizerRef> optimizers = {optimizer.optimizer};
  const int64_t count = config.train.micro_batches;
  std::vector<CapturedPart> parts;
  if (!is_in_parts(optimizer, count, config.parallel.pp)) {
    const TrainStep step = make_train_step(model, optimizer, config.optim.clip);
    const auto on_rows = [&](const std::vector<at::Tensor>& rows) { return step(with_micro_batches(rows, count)); };
    parts.push_back({"the step", 1, stepc::plan(on_rows, modules, optimizers, with_rows_first(batch))});
    return parts;
  }
  MicroStep micro = make_micro_step(model, optimizer);
  const std::vector<at::Tensor> inputs = [&] {
    const VirtualRegion shapes_alone;  // a batch that is made up has no labels to count
    return micro_tensors(batch.micro_batch(0), models::count_tokens(batch.labels));
  }();
  parts.push_back({"a micro-batch", count, stepc::plan(micro, modules, optimizers, inputs)});
  UpdateStep update = make_update_step(optimizer, config.optim.clip);
  parts.push_back({"the update", 1, stepc::plan(update, modules, optimizers)});
  return parts;
}

CapturedRun capture_run(const RunConfig& config, const models::DecoderConfig& shape,
                        const std::optional<models::LoraConfig>& adapter, const Batch& batch) {
  std::optional<VirtualRegion> region(std::in_place);
  models::Decoder model(shape, models::scalar_type(config.model.compute));
  if (adapter) models::add_adapters(model, *adapter, 0);
  const ChosenOptimizer optimizer = choose_optimizer(config, models::trainable_parameters(model));
  if (is_in_parts(optimizer, config.train.micro_batches, config.parallel.pp)) hold_gradients(optimizer);
  region.reset();
  CapturedRun run{model, optimizer, capture_parts(model, optimizer, config, batch)};
  for (const CapturedPart& part : run.parts)
    if (!part.plan.obstacle.empty())
      throw RunFailure(str("this step cannot be planned before it runs: {}", part.plan.obstacle));
  return run;
}

uint64_t RankPlan::state_bytes() const {
  StepState state;
  for (const RankPart& part : parts) state.merge(state_of(part.graph));
  return bytes_of(state);
}

uint64_t RankPlan::step_bytes() const {
  uint64_t bytes = 0;
  for (const RankPart& part : parts) bytes = std::max(bytes, part.memory.arena_bytes);
  return bytes;
}

RankPlan plan_rank(const std::vector<CapturedPart>& captured, const RunConfig& config, const Strategy& strategy,
                   const ModelDirectory& directory, models::Decoder model, const ChosenOptimizer& optimizer) {
  RankPlanner planner(config, strategy);
  RankPlan out{strategy, {}, {}};
  for (const CapturedPart& part : captured) {
    out.parts.push_back(planner.plan(part.name, part.times, part.plan));
    out.strategy.context = planner.strategy().context;
    planner.keep_parameters(out.parts.back().graph);
  }
  out.copies = copies_need(config, weight_slices(directory, std::move(model), planner.state()),
                           state_slices(optimizer, planner.state()), planner.state());
  return out;
}

std::string to_text(const RankPlan& plan) {
  std::string out = str("one of {}\n{}", to_text(plan.strategy), to_text(larger_part(plan).memory));
  for (const RankPart& part : plan.parts) {
    const std::string head = plan.parts.size() == 1 ? "it sends" : str("{}, {} a step, sends", part.name, part.times);
    out += to_text(communication_of(part.graph), plan.strategy.mesh, head);
  }
  out += to_text(padded_inputs(plan.parts.front().graph));  // the batch, and parameters as all parts have them
  Prediction sum = plan.parts.front().prediction;
  sum.seconds = sum.exchange_seconds = sum.exposed_seconds = 0;
  for (const RankPart& part : plan.parts) {
    const auto times = static_cast<double>(part.times);
    sum.seconds += part.prediction.seconds * times;
    sum.exchange_seconds += part.prediction.exchange_seconds * times;
    sum.exposed_seconds += part.prediction.exposed_seconds * times;
  }
  out += str("predicted time  {}\n", to_text(sum));
  out += str("of it in exchanges {}, while nothing else runs {}\n", time_text(sum.exchange_seconds),
             time_text(sum.exposed_seconds));
  out += str("a rank takes {}: model and optimizer {}, step {}, {}the program itself aside\n",
             human_bytes(plan.state_bytes() + plan.step_bytes() + plan.copies.total()), human_bytes(plan.state_bytes()),
             human_bytes(plan.step_bytes()), to_text(plan.copies));
  return out;
}

std::string memory_svg(const RankPlan& plan) {
  return timeline_svg(larger_part(plan).memory, "live bytes of a training step on one rank");
}

}  // namespace stepc::train
