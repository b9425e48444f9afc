// The step of one rank of a mesh on paper: what it holds, what it sends, what it should take. It is captured virtually
// and planned as a run's step is; nothing of it runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/virtual_plan.h"
#include "engine/prediction.h"
#include "memory/report.h"
#include "models/decoder.h"
#include "models/lora.h"
#include "passes/partition/strategy.h"
#include "train/config/run_config.h"
#include "train/model/model_directory.h"
#include "train/step/batches.h"
#include "train/step/model_slices.h"
#include "train/step/optimizer_choice.h"

namespace stepc::train {

// A step as it was captured whole, or what its micro-batches and its update do (train/step/train_step.h).
struct CapturedPart {
  std::string name;
  int64_t times = 1;  // in a step
  VirtualPlan plan;
};
// `model` and `optimizer` may be virtual; in parts the optimizer holds gradients. `batch`: (micro-batches, rows, seq),
// of all ranks together. A whole step takes with_rows_first() of it, a micro-batch its micro_tensors().
std::vector<CapturedPart> capture_parts(models::Decoder model, const ChosenOptimizer& optimizer,
                                        const RunConfig& config, const Batch& batch);
// A batch's tensors with all rows in the first dimension, which is what data axes split.
std::vector<at::Tensor> with_rows_first(const Batch& batch);

// A run's step before anything is planned. The model holds no memory.
struct CapturedRun {
  models::Decoder model;
  ChosenOptimizer optimizer;
  std::vector<CapturedPart> parts;
};
// `batch` as above. RunFailure where the step cannot be captured without running it.
CapturedRun capture_run(const RunConfig& config, const models::DecoderConfig& shape,
                        const std::optional<models::LoraConfig>& adapter, const Batch& batch);

// One of them as a rank runs it.
struct RankPart {
  std::string name;
  int64_t times = 1;  // in a step
  Graph graph;        // of one rank, fused
  MemoryReport memory;
  Prediction prediction;
};
struct RankPlan {
  Strategy strategy;
  std::vector<RankPart> parts;
  CopiesNeed copies;  // the first rank's

  // The program's own memory on a rank: parameters, optimizer state, held gradients, buffers.
  [[nodiscard]] uint64_t state_bytes() const;
  // The largest arena: all else.
  [[nodiscard]] uint64_t step_bytes() const;
};

// UserError for rules that do not fit the model. `captured`: without obstacles.
// `model` and `optimizer`: those of which the step was captured.
RankPlan plan_rank(const std::vector<CapturedPart>& captured, const RunConfig& config, const Strategy& strategy,
                   const ModelDirectory& directory, models::Decoder model, const ChosenOptimizer& optimizer);

// Memory by kind of the part that needs most, what each part sends, what is padded, the predicted time.
std::string to_text(const RankPlan& plan);
// Live bytes of that part over time, as the text of an SVG file.
std::string memory_svg(const RankPlan& plan);

}  // namespace stepc::train
