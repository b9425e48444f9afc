// The optimizer and the learning rates that a config asks for.
#pragma once

#include <cstdint>
#include <memory>

#include "optim/loss_scaler.h"
#include "optim/optimizer.h"
#include "optim/wsam.h"
#include "train/config/run_config.h"

namespace stepc::train {

struct ChosenOptimizer {
  std::shared_ptr<optim::Optimizer> optimizer;
  std::shared_ptr<optim::Wsam> wsam;          // the same, where it takes two gradients a step; else null
  std::shared_ptr<optim::LossScaler> scaler;  // of float16, its state is part of the optimizer's; else null
};

ChosenOptimizer choose_optimizer(const RunConfig& config, optim::NamedTensors parameters);

// Of the step after `step` steps.
double learning_rate_at(const RunConfig& config, int64_t step);

}  // namespace stepc::train
