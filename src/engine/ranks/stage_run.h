// StageRun: the functions of this rank's stage and its calls of them in a step, together with the ranks of the other
// stages (plan/stages/stage_program.h). Owns the functions' plans; borrows kernels and state.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "aten/generator_snapshot.h"
#include "engine/ranks/rank_program.h"
#include "engine/ranks/stage_cuts.h"
#include "engine/ranks/stage_ranks.h"
#include "plan/stages/simulate_program.h"

namespace stepc {

class StageRun {
 public:
  // Plans this rank's functions, and tells `state` what of the program they have. All ranks make theirs together:
  // UserError where they came to other cuts or other calls, or ranks of one stage to other plans. `options`: of the
  // mesh without stages, which is that of `state` too; its budget is what a rank may take, `held` bytes of the
  // program's tensors among it. All micro-batches draw from one seed, as a whole step's plan does, each the numbers of
  // its rows.
  StageRun(StageParts parts, const StageRanks& ranks, KernelSources& kernels, const CompileOptions& options,
           const Verify& verify, ShardedState& state, uint64_t held = 0);
  StageRun(const StageRun&) = delete;
  StageRun& operator=(const StageRun&) = delete;
  ~StageRun();

  // By number, a micro-batch's tensors, whole, the same on all ranks.
  using MicroBatchFn = std::function<std::vector<at::Tensor>(int64_t micro_batch)>;
  // What observes a run; both may be left out.
  struct Probes {
    std::map<const RankProgram*, RunTimes>* times = nullptr;
    // Of a run of function number `function`.
    std::function<RankProgram::OnWritten(const RankProgram& program, int64_t micro_batch, uint32_t function)>
        on_written = {};
  };
  // By returned tensor of the step, its values of all micro-batches, (micro-batches, ...), the same on every rank.
  std::vector<at::Tensor> run(const MicroBatchFn& micro_batch, const Probes& probes);
  std::vector<at::Tensor> run(const MicroBatchFn& micro_batch) { return run(micro_batch, Probes()); }
  // The same of an update whose numbers the step's own code reads (StageRead), in parts: it begins, goes on to where
  // `reads` of them have been read, and ends; what it returns may be asked for in between, of this rank's functions.
  // All ranks abandon it at the same read.
  void begin(MicroBatchFn micro_batch, const Probes& probes);
  void go_on(uint32_t reads);
  [[nodiscard]] at::Tensor returned(uint32_t result) const;
  std::vector<at::Tensor> end();
  void abandon();

  // What a run should take, and how each rank waits. All ranks call it together.
  [[nodiscard]] ProgramTimeline predict(const KnownTarget& known) const;
  // Of the last run, and of that how long this rank waited for others' values.
  [[nodiscard]] double run_seconds() const { return run_seconds_; }
  [[nodiscard]] double waited_seconds() const { return waited_seconds_; }
  // Device launches of the last run, of many instructions each.
  [[nodiscard]] uint64_t graphs_launched() const { return graphs_launched_; }

  // This rank's, in the order of the cut; none of another rank's functions.
  [[nodiscard]] const std::vector<std::unique_ptr<RankProgram>>& programs() const { return programs_; }
  [[nodiscard]] const StageCut& cut() const { return parts_.cut; }
  [[nodiscard]] const StageProgram& program() const { return parts_.program; }
  // Of the values that lie between functions: at most at once, as planned, and in the last run.
  [[nodiscard]] uint64_t planned_bytes() const;
  // That, and the largest arena of this rank's functions.
  [[nodiscard]] uint64_t step_bytes() const;
  [[nodiscard]] uint64_t measured_bytes() const { return most_bytes_; }

 private:
  struct Step;
  [[nodiscard]] const std::vector<StageCall>& calls() const {
    return parts_.program.calls[static_cast<size_t>(ranks_.own)];
  }
  // The first call from `from` on that waits for more than `reads`.
  [[nodiscard]] size_t end_of_calls(size_t from, uint32_t reads) const;
  void make_call(size_t call, size_t end);
  void begin_receive(size_t call);
  void run_function(size_t call);
  std::vector<at::Tensor> shared_results();

  void place_calls();
  // Where the slot's value lies in every step, which the device's graphs count on.
  at::Tensor& slot_memory(const SlotValue& one);
  void put(const SlotValue& one, const at::Tensor& value);

  [[nodiscard]] at::Generator draws() const { return default_generator_of(device_); }
  [[nodiscard]] at::Tensor empty_value(const TensorType& type) const;

  StageParts parts_;
  StageRanks ranks_;
  c10::Device device_;                                  // that the step's tensors lie on
  std::vector<std::unique_ptr<RankProgram>> programs_;  // by function; none: another rank's
  bool keeps_slots_;                                    // from step to step
  std::vector<at::Tensor> slots_;                       // then: their memory
  std::vector<uint32_t> places_;                        // by call of a function, which of its sets of slots it has
  uint64_t steps_ = 0;
  std::unique_ptr<Step> step_;  // while one runs
  uint64_t most_bytes_ = 0, graphs_launched_ = 0;
  double run_seconds_ = 0, waited_seconds_ = 0;
};

}  // namespace stepc
