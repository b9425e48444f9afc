// Plan: one captured path of a step, compiled, with everything that a replay needs from the program around it. Owns the
// executors; borrows the program's tensors for the length of a run. plan.cpp makes it and answers questions about it,
// plan_run.cpp runs it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capture/tracer.h"
#include "engine/plan/compile.h"
#include "engine/plan/input_map.h"
#include "engine/plan/raising_calls.h"
#include "engine/prediction.h"
#include "engine/program/event_update.h"
#include "engine/program/program.h"
#include "engine/program/undo.h"

namespace stepc {

// How a plan is made of its trace.
struct PlanOptions {
  int threads = 1;  // intra-op, that the step was captured with
  bool device_graphs = false;
  // With them the step runs as a Graph, in fast mode; why_exact() says where it cannot. None: as the recorded calls.
  KernelSources* kernels = nullptr;
  MemoryBudget budget = {};
  // Nothing is known of what a virtually captured step allocates, so its calls cannot be replayed as recorded ones: it
  // runs as a Graph or not at all.
  Capture capture = Capture::kRun;
  // Recordings agreed call by call: the program's host code runs beside every replay (engine/plan/traced_step.h).
  bool is_traced = false;
  KnownTarget known = {};  // what a budget "auto" is weighed with; no other plan looks at it
};

// Of a traced step's run that came to a number that the program reads: which one.
Arg number_at(const StepResult& pause);

class Plan {
 public:
  // `recorded` is the last of the recordings that agreed, `agreed` what they agreed on; `tensors` are the program's by
  // its keys, and the batch's after them. The recorded calls are compiled when something asks for them.
  Plan(Trace recorded, Trace agreed, const Program& program, const std::vector<at::Tensor>& tensors,
       const PlanOptions& options);

  // What one run came to. Without `result` nothing has changed in the program.
  struct Outcome {
    std::optional<StepResult> result;
    std::optional<size_t> missed_read;  // another branch: this guard read `read`
    Arg read;
    std::string change;           // or: why the plan no longer fits the program
    std::string error;            // or: what a kernel threw, as the step's own would; its host code may catch it
    std::map<size_t, Arg> reads;  // of a traced step: what the program would have read, by event
  };

  // Runs the step on the program as it is. The result's rebindings are left to apply(). What host code throws, or a
  // kernel that is not known to raise by what it finds, passes through, with everything undone that can be.
  // `times`, if there is one, gets when each instruction ran.
  Outcome run(Program& program, const std::vector<at::Tensor>& tensors, RunTimes* times = nullptr);
  // Of a step that runs as a Graph, what the fused kernels are compared with. The same with one ATen call a node and
  // nothing fused, and with the same random draws; compiled for this run alone, which ends at a pause or later.
  Outcome run_plain(Program& program, const std::vector<at::Tensor>& tensors);
  StepResult resume_plain(const std::vector<at::Tensor>& incoming);
  // And the recorded calls themselves, which draw as eager does.
  Outcome run_recorded(Program& program, const std::vector<at::Tensor>& tensors);

  // A run that changes nothing and takes the memory that run() takes: what it would leave behind, as sketches
  // (engine/compare/sketch.h), those of the result among it.
  struct DryOutcome : Outcome {
    std::vector<at::Tensor> left;  // as `tensors`; undefined where the step leaves them as they are
  };
  // Of the plain Graph while that is there.
  DryOutcome run_dry(Program& program, const std::vector<at::Tensor>& tensors);
  // Of a step that runs as a Graph: makes the plain one, which takes at most `most_bytes` beside the program's tensors
  // if that can be had. Returns what it takes.
  uint64_t make_plain(uint64_t most_bytes);
  void drop_plain() {
    instead_ = nullptr;
    plain_.reset();
  }

  // A traced step's run, in parts: why it cannot be, empty if it can; what the host supplies, in the order of calls; up
  // to the next number that the program reads, or to its end. run() runs it whole, on what was supplied last.
  std::string why_not(const std::vector<at::Tensor>& tensors);
  void supply(const HostSupply& number);
  StepResult begin(const Program& program, const std::vector<at::Tensor>& tensors, RunTimes* times);
  Tracer& tracer() { return *tracer_; }
  // `tensors` without the gradients that the plan does not read.
  std::vector<at::Tensor> inputs_among(std::vector<at::Tensor> tensors) const;
  std::vector<at::Tensor> externals(const std::vector<at::Tensor>& tensors) const {
    return tensors_at(inputs_.externals(), tensors);
  }
  // With data that the host makes inside the step at the places where the plan looks for it, after all others: what
  // `now` has by its key, else the last recorded.
  std::vector<at::Tensor> with_host_data(std::vector<at::Tensor> tensors,
                                         const std::map<std::string, at::Tensor>& now = {}) const {
    return inputs_.with_host_data(std::move(tensors), now);
  }
  // And data that it has made since begin(), which was given the last recorded.
  void fill_host_data(const std::string& key, const at::Tensor& data) { inputs_.fill_host_data(key, data); }
  // What is written while the step may still leave the plan, to be copied before it: by the host itself, and by the
  // plan's parts.
  std::vector<at::Tensor> written_by_host(const std::vector<at::Tensor>& tensors) const {
    return tensors_at(host_, tensors);
  }
  std::vector<at::Tensor> written_early(const std::vector<at::Tensor>& tensors) const {
    return tensors_at(undo_, tensors);
  }

  // Gives the program's slots the tensors that the step left there.
  void apply(Program& program, const std::vector<at::Tensor>& tensors, const StepResult& result) const;

  // All tensors that the step may change, for a full undo.
  std::vector<at::Tensor> changed(const std::vector<at::Tensor>& tensors) const;
  std::vector<at::Generator> generators(const Program& program) const;
  // Of a step that pauses: what it declares to write before.
  std::vector<at::Tensor> written_before_pause(const std::vector<at::Tensor>& tensors) const;
  std::vector<at::Tensor> written(const std::vector<at::Tensor>& tensors) const;

  // Of a traced step: whether it would follow this plan, its numbers being those of `recorded`.
  bool has_same_calls(const Trace& recorded) const;

  // Whether this is the variant that begins as `other` does up to its read `index`, and then reads `number`.
  bool continues(const Plan& other, size_t index, const Arg& number) const;

  // A run that came to a pause, and how it goes on.
  bool is_paused() const;
  StepResult resume(const std::vector<at::Tensor>& incoming);
  // Of a traced step: to the end, past what the program would have read on the way.
  StepResult resume(const std::vector<at::Tensor>& incoming, std::map<size_t, Arg>& reads);
  // Why it cannot go on with these: another set of them is there. Empty where it can.
  std::string why_not_resume(const std::vector<at::Tensor>& incoming) const;
  void abandon();
  // What the program gets at the pause, as values of the trace.
  const std::vector<ValueId>& given_at_pause() const { return pause().outputs; }
  // Of a paused run: whether what follows the pause reads this output's memory, which the program may have changed.
  bool reads_after_pause(size_t output) const;
  // The door's number for what the outputs at the pause are made into.
  int64_t pause_structure() const;

  const Trace& recorded() const { return recorded_; }
  const Trace& trace() const { return trace_; }
  // What runs, as long as it fits: the Graph's Schedule in fast mode, else the recorded calls'.
  const Schedule& schedule() const { return (fast_ != nullptr ? fast_ : exact_)->executor->schedule(); }
  // Set when the step runs as a Graph: what is known of it beside its Schedule.
  const GraphSchedule* graph() const { return fast_ == nullptr ? nullptr : &fast_->plan; }
  // The program's host code passes integers that the Graph has built in as others.
  bool is_unfit() const { return fast_ != nullptr && fast_->executor->is_unfit(); }
  // Its host code runs beside every replay.
  bool is_traced() const { return options_.is_traced; }
  // How a replay is compared with eager: bit by bit where the recorded calls run and repeat their bits, else within
  // rounding, `has_narrow`: of a type narrower than f32.
  bool has_fixed_bits() const { return graph() == nullptr && unordered_.empty(); }
  bool has_narrow() const;
  // The operator for which the recorded calls do not repeat them; empty: none.
  const std::string& unordered() const { return unordered_; }
  // Captured without executing it.
  bool is_virtual() const { return options_.capture == Capture::kVirtual; }
  // Whether the last run was of the recorded calls although there is a Graph.
  bool ran_exact() const { return ran_exact_; }
  const std::string& why_exact() const { return why_exact_; }
  // And whether that is a fault of stepc.
  bool has_fault() const { return has_fault_; }
  double planning_seconds() const { return planning_seconds_; }
  double shadow_seconds() const { return shadow_seconds_; }
  // Of budget "auto": what was weighed, and with which Target.
  const std::optional<AutoBudget>& weighed() const { return weighed_; }
  const KnownTarget& known() const { return options_.known; }
  double execute_seconds() const { return execute_seconds_; }
  // Events that were replayed without their host code.
  int64_t known_updates() const { return known_updates_; }
  // What is known of events is compared with their host code at the next replay.
  void doubt_updates();

  // Its last run has been compared, and was as it must be. No longer so once launches of a device have been recorded
  // that were no part of that run.
  [[nodiscard]] bool is_verified() const {
    return verified_ && (exact_ == nullptr || exact_->executor->graphs_recorded() <= graphs_verified_);
  }
  void set_verified(bool verified) {
    verified_ = verified;
    graphs_verified_ = exact_ == nullptr ? 0 : exact_->executor->graphs_of_last_run();
  }
  // Never to be compared.
  void trust() {
    verified_ = true;
    graphs_verified_ = UINT64_MAX;
  }

  int64_t replays = 0;
  std::vector<double> first_seconds;  // of the first replays, where something was weighed
  std::string dispute;                // where a replay last differed from eager, until float64 has decided
  uint64_t eager_peak_bytes = 0;      // that eager reaches at least; of a virtually captured step

 private:
  struct EventRun {
    std::unique_ptr<EventUpdate> update;  // none: an eager event
    bool in_place = false;                // a guard stands before it: it runs when the replay gets there
  };

  // One way to run the step: its executor, and where each of its schedule's inputs stands among the tensors.
  struct Variant {
    std::unique_ptr<Executor> executor;
    GraphSchedule plan;
    std::vector<size_t> inputs;
    size_t raises_before = 0;  // one past the last instruction whose error is undone
  };

  std::unique_ptr<Variant> variant_of(Compiled compiled);
  Variant& exact();
  Variant& current() { return fast_ != nullptr && !is_unfit() ? *fast_ : exact(); }
  const HostEvent& pause() const;
  std::vector<at::Tensor> written_by(size_t end, const std::vector<at::Tensor>& tensors) const;
  StepResult past_reads(StepResult result, const std::function<StepResult()>& resume,
                        std::map<size_t, Arg>& reads) const;
  void find_undo(const std::vector<at::Tensor>& tensors);
  void find_undo_of(const Variant& variant);
  CompileOptions compile_options() const;
  void compile_graph();
  void prepare_events(const Program& program);
  std::string update(size_t event, Program& program, const std::vector<at::Tensor>& tensors, Undo* undo);
  Outcome run_instead(Variant& variant, Program& program, const std::vector<at::Tensor>& tensors);
  StepResult execute(const RunInputs& inputs, std::vector<at::Tensor> of_current,
                     const std::vector<at::Tensor>& tensors);
  std::string run_event(size_t event, Program& program, const std::vector<at::Tensor>& tensors,
                        const std::vector<at::Tensor>& gradients, Undo* undo);

  Trace recorded_;
  Trace trace_;
  RaisingCalls raising_;
  PlanOptions options_;
  InputMap inputs_;
  std::unique_ptr<Variant> fast_;   // fast mode; runs in the other's stead while it fits
  std::unique_ptr<Variant> exact_;  // made when it is asked for
  std::unique_ptr<Variant> plain_;  // there while it runs
  Variant* instead_ = nullptr;      // of all others, while it is compared with
  ShowWritten show_written_;        // set for a dry run
  Graph fused_;                     // of a virtually captured step, for make_plain()
  bool ran_exact_ = false;
  std::vector<HostSupply> supplied_;  // by the host code of the run at hand, in fast mode
  std::unique_ptr<Tracer> tracer_;    // of a traced step
  std::optional<AutoBudget> weighed_;
  std::string why_exact_;
  bool has_fault_ = false;
  std::string unordered_;
  bool verified_ = false;
  uint64_t graphs_verified_ = 0;
  double planning_seconds_ = 0;
  double shadow_seconds_ = 0;
  double execute_seconds_ = 0;
  int64_t known_updates_ = 0;
  std::vector<size_t> may_change_;  // tensors for a full undo
  std::vector<size_t> undo_;        // tensors that are written while the replay may still turn back
  std::vector<size_t> host_;        // of a traced step: tensors that its own calls write
  bool may_turn_back_ = false;
  std::vector<EventRun> events_;
};

}  // namespace stepc
