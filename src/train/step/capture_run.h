// A run's step, captured without being executed: whole, or in the parts that micro-batches and stages make of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/compile.h"
#include "engine/plan/virtual_plan.h"
#include "models/decoder.h"
#include "models/lora.h"
#include "train/config/run_config.h"
#include "train/step/batches.h"
#include "train/step/optimizer_choice.h"

namespace stepc::train {

// A step as it was captured whole, or what its micro-batches do, and then what is done once for all of them
// (train/step/train_step.h), as on ranks a pipeline and micro-batches are.
struct CapturedPart {
  std::string name;
  int64_t times = 1;  // in a step
  VirtualPlan plan;
  uint32_t turn = 0;  // of a micro-batch: the tensor of its batch that says which one it is
};
// `model` and `optimizer` may be virtual; in parts the optimizer holds gradients. `batch`: (micro-batches, rows, seq),
// of all ranks together. A whole step takes its all_rows(), a micro-batch its micro_tensors().
std::vector<CapturedPart> capture_parts(models::Decoder model, const ChosenOptimizer& optimizer,
                                        const RunConfig& config, const Batch& batch);

// Such parts as one rank of the mesh without stages runs them, before they are cut into stages: with the draws of the
// whole step. `options`: as rank_graph_of(). UserError for a part that could not be captured.
struct RankGraphs {
  Graph micro_batch;
  std::vector<Graph> updates;
};
RankGraphs rank_graphs(const std::vector<CapturedPart>& parts, KernelSources& kernels, CompileOptions& options);

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
