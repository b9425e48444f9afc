// RankProgram: one captured step as this rank of a mesh runs it, together with the others. Owns its trace and executor;
// borrows the kernels and the state, of which it reads and writes this rank's parts.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aten/generator_snapshot.h"
#include "cost/profile.h"
#include "engine/config.h"
#include "engine/plan/compile.h"
#include "engine/plan/virtual_plan.h"
#include "engine/prediction.h"
#include "engine/ranks/sharded_state.h"
#include "engine/stats.h"

namespace stepc {

// Of a function that a step runs several times: the step's number; at which of a few places the function finds and
// leaves what lies between functions; and by returned tensor its memory there, as RunInputs has it.
struct PartOfStep {
  std::optional<uint64_t> step = {};
  uint32_t place = 0;
  std::vector<at::Tensor> results = {};
};

class RankProgram {
 public:
  // Plans and compiles what was captured, and tells `state` what of the program it has. All ranks make theirs together:
  // UserError where they came to different plans, which it names, where they verify otherwise, and for a step that
  // cannot be captured.
  RankProgram(VirtualPlan captured, KernelSources& kernels, const CompileOptions& options, const Verify& verify,
              const std::shared_ptr<Ranks>& ranks, ShardedState& state);
  // The same of options.function, which outlives this.
  RankProgram(KernelSources& kernels, const CompileOptions& options, const Verify& verify,
              const std::shared_ptr<Ranks>& ranks, ShardedState& state);

  // `batch`: whole tensors, the same on every rank, or this rank's part of one. Returns what the step does, which is
  // the same on every rank, and the numbers beside it. Before that the plan is verified, where it is due. UserError
  // where a guard missed: an index that is out of range, say. `times`, if there is one, gets when each instruction ran;
  // `on_written` as RunInputs has it.
  using OnWritten = std::function<void(size_t instruction, const at::Tensor& written)>;
  StepResult step(const std::vector<at::Tensor>& batch, RunTimes* times = nullptr, OnWritten on_written = nullptr,
                  const PartOfStep& part = {});
  // Of a step whose own code reads numbers: its beginning, up to the first of them (`paused`), and the way on from one
  // to the next. Nothing of the program is changed before the last one has gone on. A run that was abandoned leaves
  // nothing, not even draws.
  StepResult begin(const std::vector<at::Tensor>& batch, RunTimes* times = nullptr, OnWritten on_written = nullptr,
                   const PartOfStep& part = {});
  StepResult go_on() { return came_to(compiled_.executor->resume({})); }
  void abandon();
  // From now on the captured `call` is given `number` as its argument `arg`, as Executor::supply().
  void supply(CallId call, size_t arg, const c10::IValue& number);
  [[nodiscard]] bool is_unfit() const { return compiled_.executor->is_unfit(); }

  // Whether a run is to be compared before it counts: the next one, that at `place`; the same on all ranks.
  [[nodiscard]] bool must_verify(uint32_t place = 0) const;
  // Compares a run of the plan with the plain Graph's (engine/ranks/verify_rank.h), without effect; step() does it by
  // itself. A plan that is wrong on any rank is wrong on all: all warn, and run the plain Graph from then on. UserError
  // on all where that cannot run either, and where the machine of one computes something else each time.
  void verify(const std::vector<at::Tensor>& batch, const PartOfStep& part = {});
  struct Verified {
    uint64_t count = 0;
    double seconds = 0;
    std::string with;     // what the last one compared with; for reports
    std::string warning;  // that the plan was wrong
  };
  [[nodiscard]] const Verified& verified() const { return verified_; }

  [[nodiscard]] const Trace& trace() const { return trace_; }
  // From which it draws.
  [[nodiscard]] at::Generator generator() const { return compiled_.executor->generator(); }
  [[nodiscard]] const Schedule& schedule() const { return compiled_.executor->schedule(); }
  [[nodiscard]] const Graph& graph() const { return compiled_.graph; }
  [[nodiscard]] const MemoryReport& memory() const { return compiled_.plan.memory; }
  [[nodiscard]] const MemoryCounts& measured() const { return measured_; }
  [[nodiscard]] double planning_seconds() const { return compiled_.seconds; }
  [[nodiscard]] uint64_t replays() const { return replays_; }

 private:
  void compile();
  RunInputs inputs_of(Executor& executor, const std::vector<at::Tensor>& batch, const PartOfStep& part);
  at::Tensor at_its_place(size_t tensor, const at::Tensor& now);
  StepResult came_to(StepResult result);

  Trace trace_;
  KernelSources& kernels_;
  CompileOptions options_;
  Verify verify_;
  std::shared_ptr<Ranks> ranks_;
  ShardedState& state_;
  Compiled compiled_;
  Compiled plain_;         // kept where it is compared with again
  bool is_plain_ = false;  // compiled_ is the plain Graph's
  bool is_verified_ = false;
  uint32_t place_ = 0;                        // of the present run
  std::map<uint32_t, bool> verified_graphs_;  // by place, whether what the device launches at once there was compared
  std::map<size_t, at::Tensor> places_;       // of a function's batch, on a device
  std::map<std::pair<CallId, size_t>, c10::IValue> supplied_;
  std::optional<GeneratorSnapshot> before_run_;  // the generator, of a run that has paused
  MemoryCounts measured_;
  uint64_t replays_ = 0;
  Verified verified_;
};

// Adds what is new in `now`.
void count_verified(Stats& stats, const RankProgram::Verified& now, const RankProgram::Verified& before = {});

}  // namespace stepc
