// The steps of a rank of a pipeline: its functions of what was captured (train/step/stage_cuts.h), and runs of them
// (engine/ranks/stage_run.h). All ranks make every call together.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/ranks/stage_run.h"
#include "train/step/stage_cuts.h"

namespace stepc::train {

class StageSteps {
 public:
  // `kernels` and `state`, of the mesh without stages, outlive this and what it makes.
  StageSteps(const RunConfig& config, StageRanks ranks, KernelSources& kernels, ShardedState& state);

  // As StageCuts has them.
  std::unique_ptr<StageRun> micro_batch(const VirtualPlan& captured, CompileOptions& options);
  std::unique_ptr<StageRun> update(const VirtualPlan& captured, CompileOptions& options);
  std::unique_ptr<StageRun> forward(const VirtualPlan& captured, CompileOptions& options);

  // Before an update: gradients of parameters that several stages hold become their sums.
  void sum_shared_gradients();

  // Whether this rank's stage saves the tensor.
  [[nodiscard]] bool saves(Owner owner, const std::string& key) const { return cuts_.saves(ranks_.own, owner, key); }
  [[nodiscard]] const StageCuts& cuts() const { return cuts_; }

 private:
  std::unique_ptr<StageRun> run_of(StageParts parts, const CompileOptions& options);

  Verify verify_;
  StageRanks ranks_;
  KernelSources& kernels_;
  ShardedState& state_;
  StageCuts cuts_;
};

}  // namespace stepc::train
