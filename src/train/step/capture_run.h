// A run's step, captured without being executed.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/plan/virtual_plan.h"
#include "models/decoder.h"
#include "models/lora.h"
#include "train/config/run_config.h"
#include "train/step/batches.h"
#include "train/step/optimizer_choice.h"

namespace stepc::train {

// Whether ranks run it in micro-batches (engine/ranks/staged_step.h), as every step of a pipeline's stages is.
bool is_cut(const RunConfig& config);
// What such a step takes of `batch` (micro-batches, rows, seq), of all ranks together.
std::vector<at::Tensor> step_rows(const RunConfig& config, const Mesh& mesh, const Batch& batch);

// The step of all micro-batches at once. `model` and `optimizer` may be virtual. `rows`: as step_rows().
VirtualPlan capture_step(models::Decoder model, const ChosenOptimizer& optimizer, const RunConfig& config,
                         const std::vector<at::Tensor>& rows);

// A run's step before anything is planned. The model holds no memory.
struct CapturedRun {
  models::Decoder model;
  ChosenOptimizer optimizer;
  VirtualPlan step;
};
// RunFailure where the step cannot be captured without running it.
CapturedRun capture_run(const RunConfig& config, const models::DecoderConfig& shape,
                        const std::optional<models::LoraConfig>& adapter, const std::vector<at::Tensor>& rows);

}  // namespace stepc::train
