// PlanMaker: makes plans from recordings that agreed and from steps that were captured without running them, and logs
// what it made. Owns the sources of kernels, which its plans share.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/plan/plan.h"
#include "engine/program/program.h"
#include "engine/program/step_input.h"
#include "engine/stats.h"

namespace stepc {

struct PlanForm {
  bool is_traced = false;  // the step's own code runs beside every replay
  bool is_exact = false;   // the recorded calls are replayed, whatever the mode
};

class PlanMaker {
 public:
  // The three must outlive this object.
  PlanMaker(Program& program, const Config& config, Stats& stats) : program_(program), config_(config), stats_(stats) {}

  // `recorded` is the last of the recordings that agreed, `agreed` what they agreed on. `tensors` are the program's by
  // its keys, then the batch's.
  std::shared_ptr<Plan> make(PlanForm form, Trace recorded, Trace agreed, const std::vector<at::Tensor>& tensors);
  // Captures the step without running it (engine/plan/virtual_plan.h). Throws UserError if that is impossible.
  std::shared_ptr<Plan> make_virtually(PlanForm form, const StepInput& input, const std::function<StepOutput()>& step);

 private:
  PlanOptions options_for(PlanForm form);
  KnownTarget target_to_weigh_with(const KernelSources* kernels) const;
  KernelSources* kernels();
  void announce(Plan& plan, const std::vector<at::Tensor>& tensors);
  void warn_of(const Plan& plan);
  void warn_of_kernel_directory();

  Program& program_;
  const Config& config_;
  Stats& stats_;
  std::shared_ptr<KernelSources> kernels_;  // set when fast mode needs them
  bool told_of_fp8_ = false;
  bool told_of_room_ = false;
  std::string kernel_problem_;  // why there are no kernels, or the last problem that was logged about their directory
};

}  // namespace stepc
