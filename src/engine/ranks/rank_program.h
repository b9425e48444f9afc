// RankProgram: one captured step as this rank of a mesh runs it, together with the others. Owns its executor; borrows
// the state, of which it reads and writes this rank's parts.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cost/profile.h"
#include "engine/plan/compile.h"
#include "engine/plan/virtual_plan.h"
#include "engine/prediction.h"
#include "engine/ranks/sharded_state.h"

namespace stepc {

class RankProgram {
 public:
  // Plans and compiles what was captured, and tells `state` what of the program it has. All ranks make theirs together:
  // UserError where they came to different plans, which it names, and for a step that cannot be captured.
  RankProgram(const VirtualPlan& captured, KernelSources& kernels, const CompileOptions& options,
              const std::shared_ptr<Ranks>& ranks, ShardedState& state);

  // `batch`: whole tensors, the same on every rank, or this rank's part of one. Returns what the step does, which is
  // the same on every rank. UserError where a guard missed: an index that is out of range, say. `times`, if there is
  // one, gets when each instruction ran; `on_written` as RunInputs has it.
  using OnWritten = std::function<void(size_t instruction, const at::Tensor& written)>;
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& batch, RunTimes* times = nullptr,
                              OnWritten on_written = nullptr);
  // The same with the numbers that the step returns beside tensors.
  StepResult step(const std::vector<at::Tensor>& batch, RunTimes* times = nullptr, OnWritten on_written = nullptr);
  // Of a step whose own code reads numbers: its beginning, up to the first of them (`paused`), and the way on from one
  // to the next. Nothing of the program is changed before the last one has gone on. A run that was abandoned leaves
  // nothing.
  StepResult begin(const std::vector<at::Tensor>& batch, RunTimes* times = nullptr);
  StepResult go_on();
  void abandon() { compiled_.executor->abandon(); }
  // From now on the captured `call` is given `number` as its argument `arg`, as Executor::supply().
  void supply(CallId call, size_t arg, const c10::IValue& number) { compiled_.executor->supply(call, arg, number); }
  [[nodiscard]] bool is_unfit() const { return compiled_.executor->is_unfit(); }

  [[nodiscard]] const Schedule& schedule() const { return compiled_.executor->schedule(); }
  [[nodiscard]] const Graph& graph() const { return compiled_.graph; }
  [[nodiscard]] const MemoryReport& memory() const { return compiled_.plan.memory; }
  [[nodiscard]] const MemoryCounts& measured() const { return measured_; }
  [[nodiscard]] double planning_seconds() const { return compiled_.seconds; }
  [[nodiscard]] uint64_t replays() const { return replays_; }

 private:
  StepResult begin(const std::vector<at::Tensor>& batch, RunTimes* times, OnWritten on_written);
  StepResult came_to(StepResult result);

  Compiled compiled_;
  std::shared_ptr<Ranks> ranks_;
  ShardedState& state_;
  MemoryCounts measured_;
  uint64_t replays_ = 0;
};

}  // namespace stepc
