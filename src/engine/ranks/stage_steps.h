// The steps of a rank of a pipeline: runs (engine/ranks/stage_run.h) of its functions (engine/ranks/stage_cuts.h). All
// ranks make every call together.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/ranks/stage_cuts.h"
#include "engine/ranks/stage_run.h"

namespace stepc {

class StageSteps {
 public:
  // `kernels` and `state`, of the mesh without stages, outlive this and what it makes.
  StageSteps(const Pipeline& pipeline, const Verify& verify, StageRanks ranks, KernelSources& kernels,
             ShardedState& state);

  // Which stage holds and runs what.
  StageCuts& cuts() { return cuts_; }
  [[nodiscard]] const StageCuts& cuts() const { return cuts_; }
  // `options`, `held`: as StageRun's.
  std::unique_ptr<StageRun> run_of(StageParts parts, const CompileOptions& options, uint64_t held = 0);
  // A step's, by round; of training within options.budget (engine/ranks/stage_budget.h).
  struct Runs {
    std::vector<std::unique_ptr<StageRun>> micro_batches, updates;
    StageHolders sums;                       // who holds what they add up and leave for later parts
    std::optional<AutoBudget> weighed = {};  // of the micro-batches
  };
  Runs runs_of(const BatchCut& cut, const CompileOptions& options);

  // Before an update: of `sums`, those that several ranks along pp hold become the sums of theirs.
  void sum_shared(const std::vector<std::string>& sums, const StageHolders& holders);

  // Whether this rank's stage saves the tensor.
  [[nodiscard]] bool saves(Owner owner, const std::string& key) const { return cuts_.saves(ranks_.own, owner, key); }
  [[nodiscard]] const StageRanks& ranks() const { return ranks_; }

 private:
  Verify verify_;
  StageRanks ranks_;
  KernelSources& kernels_;
  ShardedState& state_;
  StageCuts cuts_;
};

}  // namespace stepc
