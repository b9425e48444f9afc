// How a run's step is cut into the stages of a pipeline: where stages begin, which of them holds what of the model, and
// the order of their passes. Nothing is run: the same for the ranks of a run and for a plan on paper.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/plan/compile.h"
#include "engine/plan/virtual_plan.h"
#include "plan/stages/stage_program.h"
#include "train/config/run_config.h"

namespace stepc::train {

// A captured part of the step as functions and the calls of them.
struct StageParts {
  StageCut cut;
  StageProgram program;
};

class StageCuts {
 public:
  // UserError for what check_stages() refuses.
  explicit StageCuts(const RunConfig& config);

  // Of what was captured without obstacles, at the sizes of all ranks. `options`: of the mesh without stages; its
  // strategy learns how parameters lie. The first micro-batch says which stage holds what, so it comes before all
  // else. UserError for modules that stages cannot begin with.
  StageParts micro_batch(const VirtualPlan& captured, KernelSources& kernels, CompileOptions& options);
  [[nodiscard]] StageParts update(const VirtualPlan& captured, KernelSources& kernels, CompileOptions& options) const;
  // Without a backward pass, once.
  [[nodiscard]] StageParts forward(const VirtualPlan& captured, KernelSources& kernels, CompileOptions& options) const;

  [[nodiscard]] int64_t ranks() const { return order_.ranks(); }  // along pp
  [[nodiscard]] const StageOrder& order() const { return order_; }
  // By parameter, the stages that hold it.
  [[nodiscard]] const std::map<std::string, std::vector<int64_t>>& holders() const { return holders_; }
  // Whether that rank along pp saves the tensor: of several that hold it the first.
  [[nodiscard]] bool saves(int64_t rank, Owner owner, const std::string& key) const;
  // By stage, the module that it begins with.
  [[nodiscard]] const std::vector<std::string>& begins() const { return begins_; }

 private:
  StageOrder order_;
  std::vector<std::string> begins_;
  std::map<std::string, std::vector<int64_t>> holders_;
};

}  // namespace stepc::train
