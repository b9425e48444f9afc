// A run's step, captured without being executed: whole, or in the parts that micro-batches and stages make of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/virtual_plan.h"
#include "models/decoder.h"
#include "models/lora.h"
#include "train/config/run_config.h"
#include "train/step/batches.h"
#include "train/step/optimizer_choice.h"

namespace stepc::train {

// A step as it was captured whole, or what its micro-batches do, and then what is done once for all of them
// (train/step/train_step.h).
struct CapturedPart {
  std::string name;
  int64_t times = 1;  // in a step
  VirtualPlan plan;
};
// `model` and `optimizer` may be virtual; in parts the optimizer holds gradients. `batch`: (micro-batches, rows, seq),
// of all ranks together. A whole step takes its all_rows(), a micro-batch its micro_tensors().
std::vector<CapturedPart> capture_parts(models::Decoder model, const ChosenOptimizer& optimizer,
                                        const RunConfig& config, const Batch& batch);

// A run's step before anything is planned. The model holds no memory.
struct CapturedRun {
  models::Decoder model;
  ChosenOptimizer optimizer;
  std::vector<CapturedPart> parts;
};
// `batch` as above. RunFailure where the step cannot be captured without running it.
CapturedRun capture_run(const RunConfig& config, const models::DecoderConfig& shape,
                        const std::optional<models::LoraConfig>& adapter, const Batch& batch);

}  // namespace stepc::train
