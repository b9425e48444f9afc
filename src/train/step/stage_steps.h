// The steps of a rank of a pipeline: what was captured is cut into stages (passes/stages), and run in an order of their
// passes (engine/ranks/stage_run.h). Knows which stage holds what of the model. All ranks make every call together.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/plan/virtual_plan.h"
#include "engine/ranks/stage_run.h"
#include "train/config/run_config.h"

namespace stepc::train {

class StageSteps {
 public:
  // `kernels` and `state`, of the mesh without stages, outlive this and what it makes. UserError for an order of passes
  // that there is none of.
  StageSteps(const RunConfig& config, StageRanks ranks, KernelSources& kernels, ShardedState& state);

  // Of what was captured without obstacles, at the sizes of all ranks. `options`: of the mesh without stages; its
  // strategy learns how parameters lie. The first micro-batch says which stage holds what, so it comes before the
  // others. UserError for modules that stages cannot begin with.
  std::unique_ptr<StageRun> micro_batch(const VirtualPlan& captured, CompileOptions& options);
  std::unique_ptr<StageRun> update(const VirtualPlan& captured, CompileOptions& options);
  // Without a backward pass, once.
  std::unique_ptr<StageRun> forward(const VirtualPlan& captured, CompileOptions& options);

  // Before an update: gradients of parameters that several stages hold become their sums.
  void sum_shared_gradients();

  // Whether this stage saves the tensor: of several that hold it the first.
  [[nodiscard]] bool saves(Owner owner, const std::string& key) const;

  // "4 stages, from layers.0, layers.2, ..., in the order \"1f1b\""
  [[nodiscard]] std::string report() const;

 private:
  Graph graph_of(const VirtualPlan& captured, CompileOptions& options);
  std::unique_ptr<StageRun> run_of(StageCut cut, StageProgram program, const CompileOptions& options);

  const RunConfig& config_;
  StageRanks ranks_;
  KernelSources& kernels_;
  ShardedState& state_;
  StageOrder order_;
  std::vector<std::string> begins_;                       // by stage, the module that it begins with
  std::map<std::string, std::vector<int64_t>> holders_;  // by parameter
};

}  // namespace stepc::train
