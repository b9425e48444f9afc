#include "train/step/capture_run.h"

#include <utility>

#include "base/check.h"
#include "capture/virtual/virtual_region.h"
#include "engine/virtual_door.h"
#include "passes/partition/means_by_rank.h"
#include "train/run/trainer.h"
#include "train/step/train_step.h"

namespace stepc::train {

bool is_cut(const RunConfig& config) { return config.train.micro_batches > 1 || config.parallel.pp > 1; }

std::vector<at::Tensor> step_rows(const RunConfig& config, const Mesh& mesh, const Batch& batch) {
  return batch.all_rows(is_cut(config) ? mesh.size(data_axes(mesh)) : 1);  // one in one piece is padded by its plan
}

VirtualPlan capture_step(models::Decoder model, const ChosenOptimizer& optimizer, const RunConfig& config,
                         const std::vector<at::Tensor>& rows) {
  const std::vector<ModuleRef> modules = {model};
  const std::vector<OptimizerRef> optimizers = {optimizer.optimizer};
  TrainStep step = make_train_step(model, optimizer, config.optim.clip, config.train.micro_batches, Turns::kOutside);
  return stepc::plan(step, modules, optimizers, rows);
}

CapturedRun capture_run(const RunConfig& config, const models::DecoderConfig& shape,
                        const std::optional<models::LoraConfig>& adapter, const std::vector<at::Tensor>& rows) {
  std::optional<VirtualRegion> region(std::in_place);
  models::Decoder model(shape, models::scalar_type(config.model.compute));
  if (adapter) models::add_adapters(model, *adapter, 0);
  const ChosenOptimizer optimizer = choose_optimizer(config, models::trainable_parameters(model));
  region.reset();
  CapturedRun run{model, optimizer, capture_step(model, optimizer, config, rows)};
  if (!run.step.obstacle.empty())
    throw RunFailure(str("this step cannot be planned before it runs: {}", run.step.obstacle));
  return run;
}

}  // namespace stepc::train
