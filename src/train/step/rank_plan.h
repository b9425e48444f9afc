// The step of the ranks of a mesh on paper: what each holds, what it sends, what it should take, and of a pipeline how
// long it waits. Captured virtually and planned as a run's step is; nothing of it runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/prediction.h"
#include "memory/report.h"
#include "passes/partition/strategy.h"
#include "train/step/capture_run.h"
#include "train/step/model_slices.h"

namespace stepc::train {

// A function of the step as a rank runs it.
struct RankPart {
  std::string name;
  int64_t times = 1;  // in a step
  Graph graph;        // of one rank, fused
  MemoryReport memory;
  Prediction prediction;
};
// What a rank of a stage does; without a pipeline there is one stage.
struct StagePlan {
  std::vector<std::string> begins = {};  // of a pipeline: the modules that it begins with
  std::vector<RankPart> parts = {};
  uint64_t state_bytes = 0;    // parameters, optimizer state, held gradients, buffers
  CopiesNeed copies = {};      // the first rank's
  uint64_t between_bytes = 0;  // values that lie between functions
  double sent_bytes = 0;       // to other stages, a step
  double waits = 0;            // which part of the micro-batches' time it waits

  // The largest arena, and what lies beside it.
  [[nodiscard]] uint64_t step_bytes() const;
  [[nodiscard]] uint64_t bytes() const { return state_bytes + step_bytes() + copies.total(); }
};
struct RankPlan {
  Strategy strategy;  // with pp
  std::string order;
  std::vector<StagePlan> stages = {};  // by rank along pp
  Prediction prediction = {};          // of a step
  double waits = 0;                    // of all ranks: the bubble

  // The stage that takes most.
  [[nodiscard]] const StagePlan& largest() const;
};

// UserError for rules and stages that do not fit the model.
RankPlan plan_rank(const CapturedRun& run, const RunConfig& config, const Strategy& strategy,
                   const ModelDirectory& directory);

// Of the stage that takes most: memory by kind of the function that needs most, what each function sends, what is
// padded; the predicted time; of a pipeline a line a stage.
std::string to_text(const RankPlan& plan);
// Live bytes of that function over time, as the text of an SVG file.
std::string memory_svg(const RankPlan& plan);

}  // namespace stepc::train
