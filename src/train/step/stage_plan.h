// The step of a pipeline on paper: what each stage holds, what it sends, how long it waits. Captured virtually and
// planned as a run's is; nothing of it runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/stages/simulate_program.h"
#include "train/step/rank_plan.h"

namespace stepc::train {

// One stage, as a rank of it runs it.
struct StagePlan {
  std::vector<std::string> begins;  // the modules that it begins with
  std::vector<RankPart> parts;      // functions
  uint64_t state_bytes = 0;         // parameters, optimizer state, held gradients, buffers
  CopiesNeed copies;                // as RankPlan's
  uint64_t between_bytes = 0;       // values that lie between functions
  double sent_bytes = 0;            // to other stages, a step
  double waits = 0;                 // which part of the micro-batches' time it waits

  // The largest arena, and what lies beside it.
  [[nodiscard]] uint64_t step_bytes() const;
  [[nodiscard]] uint64_t bytes() const { return state_bytes + step_bytes() + copies.total(); }
};
struct PipelinePlan {
  Strategy strategy;  // with pp
  std::string order;
  std::vector<StagePlan> stages;  // by rank along pp
  Prediction prediction;          // of a step
  double waits = 0;               // of all ranks: the bubble

  // The stage that takes most.
  [[nodiscard]] const StagePlan& largest() const;
};

// As plan_rank(), of a strategy with pp.
PipelinePlan plan_pipeline(const std::vector<CapturedPart>& captured, const RunConfig& config, const Strategy& strategy,
                           const ModelDirectory& directory, const models::Decoder& model,
                           const ChosenOptimizer& optimizer);

// Memory by kind of the stage that needs most, what its functions send, and a line a stage.
std::string to_text(const PipelinePlan& plan);
std::string memory_svg(const PipelinePlan& plan);

}  // namespace stepc::train
