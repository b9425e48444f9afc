#include "train/step/optimizer_choice.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "optim/adamw.h"
#include "optim/agd.h"
#include "optim/lion.h"
#include "optim/lr_schedule.h"
#include "optim/sgd.h"

namespace stepc::train {
namespace {

std::shared_ptr<optim::Optimizer> make_optimizer(const RunConfig::Optim& optim, optim::NamedTensors parameters) {
  const optim::UpdateRules rules = {.decay_embeddings = optim.decay_embeddings,
                                    .low_precision = optim.master_weights ? optim::LowPrecision::kMasterWeights
                                                                          : optim::LowPrecision::kStochasticRounding};
  if (optim.name == "sgd") {
    const optim::SgdOptions options = {.lr = optim.lr,
                                       .momentum = optim.momentum,
                                       .nesterov = optim.nesterov,
                                       .weight_decay = optim.weight_decay,
                                       .rules = rules};
    return std::make_shared<optim::Sgd>(std::move(parameters), options);
  }
  if (optim.name == "agd") {
    const optim::AgdOptions options = {.lr = optim.lr,
                                       .beta1 = optim.betas[0],
                                       .beta2 = optim.betas[1],
                                       .delta = optim.agd_delta,
                                       .weight_decay = optim.weight_decay,
                                       .rules = rules};
    return std::make_shared<optim::Agd>(std::move(parameters), options);
  }
  if (optim.name == "lion") {
    const optim::LionOptions options = {.lr = optim.lr,
                                        .beta1 = optim.betas[0],
                                        .beta2 = optim.betas[1],
                                        .weight_decay = optim.weight_decay,
                                        .rules = rules};
    return std::make_shared<optim::Lion>(std::move(parameters), options);
  }
  INTERNAL_CHECK(optim.name == "adamw" || optim.name == "wsam", "{}", optim.name);
  const optim::AdamWOptions options = {.lr = optim.lr,
                                       .beta1 = optim.betas[0],
                                       .beta2 = optim.betas[1],
                                       .eps = optim.eps,
                                       .weight_decay = optim.weight_decay,
                                       .rules = rules};
  return std::make_shared<optim::AdamW>(std::move(parameters), options);
}

}  // namespace

ChosenOptimizer choose_optimizer(const RunConfig& config, optim::NamedTensors parameters) {
  ChosenOptimizer chosen = {make_optimizer(config.optim, std::move(parameters)), nullptr, nullptr};
  if (config.optim.name == "wsam") {
    const optim::WsamOptions options = {.rho = config.optim.wsam_rho, .gamma = config.optim.wsam_gamma};
    chosen.wsam = std::make_shared<optim::Wsam>(chosen.optimizer, options);
    chosen.optimizer = chosen.wsam;
  }
  if (config.model.compute == "float16") {
    chosen.scaler = std::make_shared<optim::LossScaler>();
    chosen.optimizer->keep(chosen.scaler->named_state());
  }
  return chosen;
}

double learning_rate_at(const RunConfig& config, int64_t step) {
  using Kind = optim::LrSchedule::Kind;
  static const std::map<std::string_view, Kind> kKinds = {{"constant", Kind::kConstant},
                                                          {"cosine", Kind::kCosine},
                                                          {"linear", Kind::kLinear},
                                                          {"wsd", Kind::kWarmupStableDecay}};
  const double decay = config.optim.decay_fraction * static_cast<double>(config.train.steps);
  const optim::LrSchedule schedule = {.kind = kKinds.at(config.optim.schedule),
                                      .peak = config.optim.lr,
                                      .warmup_steps = config.optim.warmup_steps,
                                      .total_steps = config.train.steps,
                                      .decay_steps = std::max<int64_t>(1, std::llround(decay)),
                                      .min_ratio = config.optim.min_lr_ratio};
  return optim::learning_rate(schedule, step);
}

}  // namespace stepc::train
