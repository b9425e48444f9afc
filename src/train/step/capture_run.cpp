#include "train/step/capture_run.h"

#include <utility>

#include "base/check.h"
#include "capture/virtual/virtual_region.h"
#include "engine/ranks/stage_cuts.h"
#include "engine/virtual_door.h"
#include "passes/stages/number_draws.h"
#include "train/run/trainer.h"
#include "train/step/train_step.h"

namespace stepc::train {

std::vector<CapturedPart> capture_parts(models::Decoder model, const ChosenOptimizer& optimizer,
                                        const RunConfig& config, const Batch& batch) {
  const std::vector<ModuleRef> modules = {model};
  const std::vector<OptimizerRef> optimizers = {optimizer.optimizer};
  const int64_t count = config.train.micro_batches;
  std::vector<CapturedPart> parts;
  if (!is_in_parts(optimizer, count, config.parallel.pp)) {
    TrainStep step = make_train_step(model, optimizer, config.optim.clip, count);
    parts.push_back({"the step", 1, stepc::plan(step, modules, optimizers, batch.all_rows())});
    return parts;
  }
  MicroStep micro = make_micro_step(model, optimizer);
  const std::vector<at::Tensor> inputs = [&] {
    const VirtualRegion shapes_alone;  // a batch that is made up has no labels to count
    return micro_tensors(batch, 0, models::count_tokens(batch.labels));
  }();
  const int64_t gradients = optimizer.wsam ? 2 : 1;
  parts.push_back({"a micro-batch", count * gradients, stepc::plan(micro, modules, optimizers, inputs),
                   static_cast<uint32_t>(inputs.size() - 1)});
  std::vector<at::Tensor> overflow;
  if (optimizer.wsam) {
    overflow.push_back(at::zeros({}));
    UpdateStep ascend = make_ascend_step(optimizer, config.optim.clip);
    parts.push_back({"the way uphill", 1, stepc::plan(ascend, modules, optimizers, std::vector<at::Tensor>())});
  }
  UpdateStep update = make_update_step(optimizer, config.optim.clip);
  parts.push_back({"the update", 1, stepc::plan(update, modules, optimizers, overflow)});
  return parts;
}

RankGraphs rank_graphs(const std::vector<CapturedPart>& parts, KernelSources& kernels, CompileOptions& options) {
  for (const CapturedPart& part : parts)
    USER_CHECK(part.plan.obstacle.empty(), "this step cannot run on several ranks, because it cannot be planned: {}",
               part.plan.obstacle);
  RankGraphs graphs{rank_graph_of(parts.at(0).plan, kernels, options, parts[0].turn), {}};
  for (size_t p = 1; p < parts.size(); ++p)
    graphs.updates.push_back(draw_behind(rank_graph_of(parts[p].plan, kernels, options), graphs.micro_batch));
  return graphs;
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

}  // namespace stepc::train
