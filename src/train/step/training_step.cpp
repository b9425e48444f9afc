#include "train/step/training_step.h"

#include <algorithm>
#include <utility>

#include "train/machine/kernel_directory.h"

namespace stepc::train {

Config engine_config(const RunConfig& config, Mode mode, Capture capture) {
  Config engine;
  engine.mode = mode;
  engine.capture = capture;
  engine.verify = parse_verify(config.train.verify);
  engine.fp8 = config.train.fp8();
  engine.device_kernels = config.train.device_kernels;
  engine.memory_budget = parse_memory_budget(config.memory.budget);
  engine.kernel_directory = kernel_directory();
  engine.max_plans = std::max(engine.max_plans, static_cast<int>(config.data.buckets.size()));
  return engine;
}

Accelerated<TrainStep> accelerated_step(models::Decoder model, const ChosenOptimizer& optimizer,
                                        const RunConfig& config, Config engine) {
  const int64_t count = config.train.micro_batches;
  const bool is_cut = count > 1 && engine.mode == Mode::kFast && model->parameters().front().device().is_cpu();
  if (is_cut) engine.parallel = in_micro_batches(count);
  return accelerate(
      make_train_step(model, optimizer, config.optim.clip, count, is_cut ? Turns::kOutside : Turns::kInStep), {model},
      {optimizer.optimizer}, std::move(engine));
}

}  // namespace stepc::train
