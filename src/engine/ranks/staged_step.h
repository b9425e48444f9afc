// StagedStep: one captured step as a rank of a pipeline runs it, or as a rank without stages runs micro-batches. The
// whole step was captured once. It is cut in time (passes/stages/cut_batch.h), and the work of a micro-batch and of the
// update is cut into stages. Owns the functions' plans; borrows kernels and state. All ranks make every call together.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "aten/generator_snapshot.h"
#include "engine/plan/virtual_plan.h"
#include "engine/ranks/stage_steps.h"
#include "passes/stages/cut_batch.h"

namespace stepc {

class StagedStep {
 public:
  // `options`: of the mesh without stages; its strategy learns how parameters lie. UserError for a step that cannot be
  // cut, and as RankProgram.
  StagedStep(VirtualPlan captured, StageSteps& stages, int64_t micro_batches, KernelSources& kernels,
             CompileOptions& options, const Verify& verify, ShardedState& state);

  // By tensor of the batch, how what a rank gives of it lies on the ranks of a stage; none: it has no rows.
  [[nodiscard]] std::map<size_t, std::optional<PartOf>> batch_parts() const;
  // What observes a step, as StageRun's; `on_update` is called when the micro-batches have run, before anything
  // of the program is changed.
  struct Probes : StageRun::Probes {
    std::function<void(const StageRun& update)> on_update = {};
  };
  // `batch`: of each tensor the whole, or the part that batch_parts() says. As RankProgram's: of a step whose own code
  // reads numbers its beginning, and the way on. What is read are numbers of all rows, behind all micro-batches.
  StepResult begin(const std::vector<at::Tensor>& batch, const Probes& probes);
  // The micro-batches of the first round alone, which change nothing.
  void run_passes(const std::vector<at::Tensor>& batch, const StageRun::Probes& probes);
  StepResult go_on();
  void abandon();
  void supply(CallId call, size_t arg, const c10::IValue& number);
  [[nodiscard]] bool is_unfit() const { return is_unfit_; }
  [[nodiscard]] const Trace& trace() const { return trace_; }
  [[nodiscard]] RankProgram::Verified verified() const;

  // What of the program any stage has, the same list on all ranks.
  [[nodiscard]] std::vector<std::pair<InputKind, std::string>> program_inputs() const;
  // This rank's functions.
  [[nodiscard]] std::vector<const RankProgram*> programs() const;
  [[nodiscard]] bool draws() const;
  [[nodiscard]] at::Generator generator() const { return default_generator_of(device_); }  // from which it draws
  [[nodiscard]] double planning_seconds() const;
  // The largest function's plan, and what lies between functions.
  [[nodiscard]] uint64_t planned_bytes() const;
  // Of the values that lie between functions, as StageRun's.
  [[nodiscard]] uint64_t planned_between() const;
  [[nodiscard]] uint64_t measured_between() const;
  // Device launches of the last step, of many instructions each.
  [[nodiscard]] uint64_t graphs_launched() const;
  // Of a round of micro-batches, how long a rank along pp should wait: ", predicted 12 %"; empty: nothing was
  // predicted.
  [[nodiscard]] std::string predicted_wait(int64_t rank) const;
  [[nodiscard]] Prediction prediction(const KnownTarget& known) const {
    return {.seconds = predicted_seconds_,
            .is_calibrated = known.is_calibrated,
            .is_of_card = known.target.gpu.has_value()};
  }
  [[nodiscard]] const StageRun& micro_batches() const { return *runs_.micro_batches[0]; }  // of the first round
  // As StageSteps::Runs.
  [[nodiscard]] const std::optional<AutoBudget>& weighed() const { return runs_.weighed; }
  void predict(const KnownTarget& known);

 private:
  struct HostNumber {
    std::vector<size_t> places = {};  // among the numbers
    std::optional<int64_t> integer = {};
  };
  void find_numbers();
  void set_number(size_t place, double number);
  void upload_numbers();
  std::vector<at::Tensor> rows_of(const std::vector<at::Tensor>& batch, int64_t micro_batch) const;
  [[nodiscard]] std::vector<at::Tensor> with_place(const std::vector<at::Tensor>& batch, int64_t micro_batch) const;
  std::vector<at::Tensor> batch_of(const std::vector<at::Tensor>& given);
  [[nodiscard]] at::Tensor at_its_place(size_t round, size_t result, const at::Tensor& now);
  void clear_held();
  [[nodiscard]] StageRun& last_update() const { return *runs_.updates.back(); }
  StepResult came_to();

  Trace trace_;
  c10::Device device_ = at::kCPU;  // that the step's tensors lie on
  StageSteps& stages_;
  ShardedState& state_;
  BatchCut cut_;
  std::map<std::pair<CallId, size_t>, HostNumber> host_numbers_;
  at::Tensor numbers_here_, numbers_there_;  // of the host and of the device, side by side
  std::vector<at::Tensor> numbers_;          // of numbers_there_, by place
  bool have_numbers_changed_ = true;
  at::Tensor place_;                                              // of the micro-batch that runs
  std::map<std::pair<size_t, size_t>, at::Tensor> of_all_there_;  // what a round's micro-batches return, for its update
  uint64_t steps_ = 0, graphs_before_ = 0;
  bool is_unfit_ = false, is_begun_ = false;
  uint32_t reads_ = 0;                           // of the step that runs, that have been made
  std::optional<GeneratorSnapshot> before_run_;  // the generator, while it runs
  std::vector<std::unique_ptr<RankProgram>> before_;
  StageSteps::Runs runs_;
  ProgramTimeline timeline_;
  double predicted_seconds_ = 0;
};

}  // namespace stepc
