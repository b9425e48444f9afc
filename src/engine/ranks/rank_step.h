// RankStep: a step of somebody's own program on the ranks of a mesh. It is captured without being executed, at the
// sizes of the whole batch, and cut for the mesh. Split tensors of the program are then held in parts, and the
// program's own tensors keep only their sizes; a tensor that is whole on a rank stays in the program's memory. There is
// no eager fallback: a step that cannot be captured is refused, on every rank, before anything changes. All ranks make
// every call together.
//
// If the step's own code decides by numbers that it reads, a plan is one path of the step, and changes nothing before
// its last read. The code runs beside it without computing anything, on the numbers that the plan has read. If it takes
// another path, all ranks switch to the plan of that path. If nobody sees what the code reads (Config::python, or an
// interpreter that does not show it), the code runs this way beside every replay.
#pragma once

#include <filesystem>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/ranks.h"
#include "cost/profile.h"
#include "engine/config.h"
#include "engine/plan/virtual_plan.h"
#include "engine/prediction.h"
#include "engine/program/event_update.h"
#include "engine/program/program.h"
#include "engine/program/signature.h"
#include "engine/program/step_input.h"
#include "engine/program/undo.h"
#include "engine/ranks/batch_rows.h"
#include "engine/ranks/program_parts.h"
#include "engine/ranks/rank_program.h"
#include "engine/ranks/staged_step.h"
#include "engine/stats.h"
#include "runtime/run_times.h"

namespace stepc {

class RankStep {
 public:
  // The user's function applied to other tensors in the places of its own.
  using StepOnFn = std::function<StepOutput(const std::vector<at::Tensor>& tensors)>;

  // UserError: a mesh that is not that of the ranks. All three outlive this.
  RankStep(Program& program, const Config& config, Stats& stats);

  [[nodiscard]] int64_t rank() const { return ranks_->rank(); }
  [[nodiscard]] int64_t ranks() const { return ranks_->ranks(); }

  // In one process: plans the step for such an input before it runs, where that has not been; the program may have no
  // values yet. Whether that could be.
  bool plan(const StepInput& input, const StepOnFn& step);
  // One training step. What it returns is what one rank would return of the whole batch, on every rank.
  StepOutput run(const StepInput& input, const StepOnFn& step);

  // The program's tensors, in parts, as ProgramParts has these calls.
  void gather(const std::vector<at::Tensor>& tensors, bool keeps);
  void scatter(const std::vector<at::Tensor>& tensors, bool takes);
  std::filesystem::path save(const std::filesystem::path& output, int64_t number, const Companions& companions);
  Checkpoint load(const std::filesystem::path& from, const ProgramParts::AcceptFn& accept);
  std::vector<ProgramParts::HeldTensor> held_tensors();
  [[nodiscard]] const Mesh& mesh() const { return strategy_.mesh; }

  // From now on replays are timed; then what the last of them took on this rank.
  void start_profile() { times_.emplace(), staged_times_.clear(), is_timed_ = false; }
  std::optional<Profile> finish_profile();

  [[nodiscard]] std::string report() const;
  // Every rank's memory, one line each.
  [[nodiscard]] std::string report_of_all() const;
  [[nodiscard]] std::optional<Prediction> prediction() const;
  // With memory budget "auto": what plans are weighed with.
  [[nodiscard]] std::optional<Target> weighed_with() const;
  // The latest plan; of a pipeline the function of it that takes most memory.
  [[nodiscard]] const RankProgram* latest() const;
  [[nodiscard]] const Trace* latest_trace() const { return plans_.empty() ? nullptr : &plans_.front().trace(); }

 private:
  struct Entry {
    std::string signature;
    std::unique_ptr<RankProgram> program;
    std::unique_ptr<StagedStep> staged;  // in its stead, of a step that is cut in time
    [[nodiscard]] const Trace& trace() const { return staged ? staged->trace() : program->trace(); }
    [[nodiscard]] bool is_unfit() const { return staged ? staged->is_unfit() : program->is_unfit(); }
    [[nodiscard]] RankProgram::Verified verified() const { return staged ? staged->verified() : program->verified(); }
    void supply(const HostSupply& one) const {
      if (staged) return staged->supply(one.call, one.arg, one.number);
      program->supply(one.call, one.arg, one.number);
    }
    // Only a plan in one piece is verified by who runs it: functions are by their own runs.
    [[nodiscard]] bool must_verify() const { return program && program->must_verify(); }
    // From which it draws.
    [[nodiscard]] at::Generator generator() const { return staged ? staged->generator() : program->generator(); }
    [[nodiscard]] StepResult go_on() const { return staged ? staged->go_on() : program->go_on(); }
    void abandon() const {
      if (staged) return staged->abandon();
      program->abandon();
    }
    RankProgram::Verified counted = {};  // that stats have
    ProgramParts::Inputs inputs;         // of the program that it is the first to have, until it runs
    std::vector<std::unique_ptr<EventUpdate>> updates;
    bool draws = false;  // random numbers
    // Of one path of the step: by event that reads a number, which of the numbers that its code reads it is; what the
    // code returned with these numbers, where it passes none that it made of them to an operator.
    bool is_path = false;
    std::map<size_t, size_t> reads;
    std::map<std::vector<std::string>, std::vector<Arg>> returned;
    uint64_t replays = 0;
  };
  struct Call {
    std::vector<at::Tensor> tensors;
    std::string signature;
    ProgramParts::Tensors moved;
    Entry* plan = nullptr;     // none: the step is captured
    std::string numbers;       // that the plan was given
    std::optional<Undo> undo;  // of what the optimizers' host code has done for it
  };

  StepOutput take(const StepInput& given, const StepOnFn& step);
  void look_at_python();
  void take_inputs(Entry& plan);
  void check_replicas();
  StepInput contiguous(const StepInput& given);
  Call begin(const StepInput& input);
  std::string signature(const std::vector<at::Tensor>& tensors, const StepInput& input);
  Entry* find(const std::string& signature);
  // `numbers`: of the path on which the step's own code reads these; none: whatever can be captured.
  using Numbers = std::optional<std::vector<Arg>>;
  // `takes`: what the plan has of the program, right then.
  void capture(const StepInput& input, const StepOnFn& step, const Numbers& numbers = {}, bool takes = true);
  // Of a plan that is a path; nothing: the step has taken another one, whose plan is there by now.
  std::optional<StepOutput> follow(Call& call, const StepInput& input, const StepOnFn& step);
  // The step's own code on the numbers that its plan has read so far. Where it makes other calls than the plan has up
  // to call `end`, the next read: the first of them.
  struct Look {
    Recording recording;
    std::optional<size_t> leaves_at;
    std::optional<Trace>
        wider;  // or: the plan holds a number that its code makes otherwise at every step; with that one open
  };
  Look look(const Entry& plan, const std::vector<Arg>& numbers, size_t end, const StepInput& input,
            const StepOnFn& step);
  void compare_calls(const Trace& trace, const VirtualRun& run, size_t end, Look& seen);
  static size_t place_of(const Entry& plan, size_t event);
  // Whether the step's own code makes the event's number, of numbers that it has read.
  static bool is_made_by_code(const HostEvent& event) {
    return event.kind == HostEvent::Kind::kShadow && event.key.empty();
  }
  static void supply_made(const Entry& plan, const Trace& taken, size_t end);
  void leave(Call& call, Look seen, const std::vector<Arg>& numbers, const StepInput& input, const StepOnFn& step);
  void check_path(const Trace& trace);
  void agree_on_path(const std::string& mine);
  void agree_on_numbers(const std::vector<Arg>& numbers);
  bool find_other(const Entry& plan, const Trace& taken, size_t leaves_at);
  void add_plan(VirtualPlan captured, const StepInput& input);
  void plan_staged(Entry& plan, VirtualPlan captured, CompileOptions& options);
  void choose(const Trace& captured, const StepInput& input, const Target& target);
  void find_rows(const StepInput& input, const StepOnFn& step, const std::string& why,
                 const std::function<std::string()>& try_capture);
  VirtualPlan plan_on(const std::vector<at::Tensor>& batch, const StepInput& input, const StepOnFn& step,
                      const Numbers& numbers);
  void agree_on_machine(const std::string& device);
  VirtualPlan captured_alike(const StepInput& input, const StepOnFn& step, const Numbers& numbers);
  std::string update(Entry& plan, const std::vector<at::Tensor>& tensors, Undo& undo, std::string& numbers);
  bool check_alike(const Call& call, const StepInput& input);
  void warn_once(const std::string& warning);
  void warn_that_parameters_differ();
  [[nodiscard]] std::vector<at::Tensor> batch_for(const Entry& plan, const StepInput& input) const;
  StepResult begin_plan(const Entry& plan, const std::vector<at::Tensor>& batch);
  StepOutput replay(Entry& plan, const StepInput& input);
  void count_replay(Entry& plan, const StepResult& result);
  void share_draws(const Entry& plan);
  void count(const Entry& plan);
  static std::vector<const RankProgram*> programs_of(const Entry& plan);
  static const RankProgram& largest_of(const Entry& plan);
  [[nodiscard]] KnownTarget target() const;
  // For messages.
  [[nodiscard]] std::string_view where() const { return ranks_->ranks() > 1 ? "on ranks" : "in micro-batches"; }

  Program& program_;
  const Config& config_;
  Stats& stats_;
  std::shared_ptr<Ranks> ranks_;
  Strategy strategy_;  // of the mesh with stages
  Pipeline pipeline_;
  MemoryBudget budget_;
  StageRanks stage_ranks_;
  bool is_open_;        // whether the mesh is still to be chosen
  std::string choice_;  // then: the ways that there were
  BatchRows rows_;
  ProgramParts parts_;
  std::shared_ptr<KernelSources> kernels_;
  std::unique_ptr<StageSteps> stages_;  // none: steps are not cut in time
  KnownTarget known_;                   // of all ranks' machines, when the last step was captured
  SharedMemory shared_;
  std::list<Entry> plans_;       // most recently used first
  bool is_begun_ = false;        // by its first call
  int64_t trained_ = 0;          // calls with gradients, those of the checkpoint among them that was loaded
  bool is_traced_ = false;       // the step's own code runs beside every replay: nobody sees what it reads
  const Entry* next_ = nullptr;  // that find() is to find
  bool compared_draws_ = false;
  std::vector<bool> copied_;       // which tensors of the call's input are copies of what the program gave
  std::optional<RunTimes> times_;  // while replays are timed,
  std::map<const RankProgram*, RunTimes> staged_times_;
  bool is_timed_ = false;  // and whether one was
};

}  // namespace stepc
