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

// How a plan is made from its trace.
struct PlanOptions {
  int threads = 1;  // intra-op threads of the capture
  bool device_graphs = false;
  // With kernels the step runs as a Graph, in fast mode, unless why_exact() gives a reason against that. None: the step
  // runs as the recorded calls.
  KernelSources* kernels = nullptr;
  MemoryBudget budget = {};
  // A virtually captured step has no recorded allocations, so its calls cannot be replayed as recorded calls: it runs
  // as a Graph or not at all.
  Capture capture = Capture::kRun;
  // The recordings agreed call by call: the program's host code runs beside every replay (engine/plan/traced_step.h).
  bool is_traced = false;
  KnownTarget known = {};  // for weighing a budget "auto"; other plans ignore it
  std::optional<Fp8Recipe> fp8 = {};
  bool device_kernels = false;  // as in Config
};

// The number that the program reads at the pause of a traced step's run.
Arg number_at(const StepResult& pause);

class Plan {
 public:
  // `recorded` is the last of the recordings that agreed, `agreed` what they agreed on. `tensors` are the program's by
  // its keys, then the batch's. The recorded calls are compiled on demand.
  Plan(Trace recorded, Trace agreed, const Program& program, const std::vector<at::Tensor>& tensors,
       const PlanOptions& options);

  // The outcome of one run. Without `result` nothing has changed in the program.
  struct Outcome {
    std::optional<StepResult> result;
    std::optional<size_t> missed_read;  // another branch: the guard of this event read `read`
    Arg read;
    std::string change;           // or: why the plan no longer fits the program
    std::string error;            // or: what a kernel threw, as the step's own call would; host code may catch it
    std::map<size_t, Arg> reads;  // traced step: what the program would have read, by event
  };

  // Runs the step on the program's present tensors. apply() then applies the rebindings of the result. An exception of
  // host code, or of a kernel that is not known to raise by its data, passes through after everything that can be
  // undone is undone.
  // `times`, if given, receives the time of each instruction.
  Outcome run(Program& program, const std::vector<at::Tensor>& tensors, RunTimes* times = nullptr);
  // For a step that runs as a Graph: the run that the fused kernels are compared with. One ATen call a node, nothing
  // fused, the same random draws. It is compiled for this run alone; a step with a pause continues by resume_plain().
  Outcome run_plain(Program& program, const std::vector<at::Tensor>& tensors);
  StepResult resume_plain(const std::vector<at::Tensor>& incoming);
  // Runs the recorded calls themselves, which draw random numbers as eager does.
  Outcome run_recorded(Program& program, const std::vector<at::Tensor>& tensors);

  // A run that changes nothing and takes the memory of run(). It returns what it would leave behind as sketches
  // (engine/compare/sketch.h); the result is sketches too.
  struct DryOutcome : Outcome {
    std::vector<at::Tensor> left;  // like `tensors`; undefined if the step leaves the tensor unchanged
  };
  // Runs the plain Graph while there is one.
  DryOutcome run_dry(Program& program, const std::vector<at::Tensor>& tensors);
  // For a step that runs as a Graph: makes the plain Graph, which takes at most `most_bytes` beside the program's
  // tensors if that is possible. Returns the bytes that it takes.
  uint64_t make_plain(uint64_t most_bytes);
  void drop_plain() {
    instead_ = nullptr;
    plain_.reset();
  }

  // A traced step's run in parts. why_not() says why it cannot begin, empty if it can. supply() takes what the host
  // supplies, in the order of calls. begin() runs up to the next number that the program reads, or to the end. run()
  // runs the whole step on what was supplied last.
  std::string why_not(const std::vector<at::Tensor>& tensors);
  void supply(const HostSupply& number);
  StepResult begin(const Program& program, const std::vector<at::Tensor>& tensors, RunTimes* times);
  Tracer& tracer() { return *tracer_; }
  // `tensors` without the gradients that the plan does not read.
  std::vector<at::Tensor> inputs_among(std::vector<at::Tensor> tensors) const;
  std::vector<at::Tensor> externals(const std::vector<at::Tensor>& tensors) const {
    return tensors_at(inputs_.externals(), tensors);
  }
  // Appends data that the host makes inside the step: the data of `now` by its key, else the data recorded last.
  std::vector<at::Tensor> with_host_data(std::vector<at::Tensor> tensors,
                                         const std::map<std::string, at::Tensor>& now = {}) const {
    return inputs_.with_host_data(std::move(tensors), now);
  }
  // Fills in data that the host has made since begin(); begin() was given the data recorded last.
  void fill_host_data(const std::string& key, const at::Tensor& data) { inputs_.fill_host_data(key, data); }
  // Tensors that are written while the step may still leave the plan, so they are copied before: written_by_host() by
  // the host itself, written_early() by the plan's parts.
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
  // For a step that pauses: the tensors that it declares to write before the pause.
  std::vector<at::Tensor> written_before_pause(const std::vector<at::Tensor>& tensors) const;
  std::vector<at::Tensor> written(const std::vector<at::Tensor>& tensors) const;

  // For a traced step: whether it would follow this plan if its numbers were those of `recorded`.
  bool has_same_calls(const Trace& recorded) const;

  // Whether this plan equals `other` up to read `index` and reads `number` there.
  bool continues(const Plan& other, size_t index, const Arg& number) const;

  // A run that is paused, and its continuation.
  bool is_paused() const;
  StepResult resume(const std::vector<at::Tensor>& incoming);
  // For a traced step: runs to the end, past the numbers that the program would have read on the way.
  StepResult resume(const std::vector<at::Tensor>& incoming, std::map<size_t, Arg>& reads);
  // Why the run cannot continue with these tensors: another set of them is defined. Empty if it can.
  std::string why_not_resume(const std::vector<at::Tensor>& incoming) const;
  void abandon();
  // The values of the trace that the program gets at the pause.
  const std::vector<ValueId>& given_at_pause() const { return pause().outputs; }
  // For a paused run: whether instructions after the pause read this output's memory, which the program may have
  // changed.
  bool reads_after_pause(size_t output) const;
  // The door's number for the structure that the outputs at the pause are made into.
  int64_t pause_structure() const;

  const Trace& recorded() const { return recorded_; }
  const Trace& trace() const { return trace_; }
  // The Schedule that runs as long as it fits: the Graph's in fast mode, else that of the recorded calls.
  const Schedule& schedule() const { return running_executor().schedule(); }
  // The facts beside the Schedule of a step that runs as a Graph; nullptr for other steps.
  const GraphSchedule* graph() const { return fast_ == nullptr ? nullptr : &fast_->plan; }
  // The program's host code passes integers other than those that the Graph has as constants.
  bool is_unfit() const { return fast_ != nullptr && fast_->executor->is_unfit(); }
  // The step's host code runs beside every replay.
  bool is_traced() const { return options_.is_traced; }
  // How a replay is compared with eager: bit by bit if the recorded calls run and are reproducible, else within
  // rounding. `narrowest`: of the floating-point types that occur; f32 stands for wider ones too.
  bool has_fixed_bits() const { return graph() == nullptr && unordered_.empty(); }
  DType narrowest() const;
  // The operator that makes the recorded calls not reproducible; empty: none.
  const std::string& unordered() const { return unordered_; }
  // The step was captured without executing it.
  bool is_virtual() const { return options_.capture == Capture::kVirtual; }
  // Whether the last run used the recorded calls although there is a Graph.
  bool ran_exact() const { return ran_exact_; }
  const std::string& why_exact() const { return why_exact_; }
  // Whether why_exact() is a fault of stepc.
  bool has_fault() const { return has_fault_; }
  double planning_seconds() const { return planning_seconds_; }
  double shadow_seconds() const { return shadow_seconds_; }
  // With budget "auto": what was weighed, and with which Target.
  const std::optional<AutoBudget>& weighed() const { return weighed_; }
  const KnownTarget& known() const { return options_.known; }
  // It multiplies in float8, as eager does not: only the plain Graph shows whether it is right.
  bool has_fp8() const { return graph() != nullptr && options_.fp8.has_value(); }
  double execute_seconds() const { return execute_seconds_; }
  // Events that were replayed without their host code.
  int64_t known_updates() const { return known_updates_; }
  // The next replay compares the known numbers of events with their host code.
  void doubt_updates();

  // The last run was compared and agreed. Becomes false when a device has recorded launches that were not part of that
  // run.
  [[nodiscard]] bool is_verified() const {
    return verified_ && running_executor().graphs_recorded() <= graphs_verified_;
  }
  void set_verified(bool verified) {
    verified_ = verified;
    graphs_verified_ = running_executor().graphs_of_last_run();
  }
  // Marks the plan as never to be compared.
  void trust() {
    verified_ = true;
    graphs_verified_ = UINT64_MAX;
  }

  int64_t replays = 0;
  std::vector<double> first_seconds;  // of the first replays, if something was weighed
  std::string dispute;                // where a replay last differed from eager, until float64 has decided
  uint64_t eager_peak_bytes = 0;      // the least peak that eager reaches; for a virtually captured step

 private:
  struct EventRun {
    std::unique_ptr<EventUpdate> update;  // none: an eager event
    bool in_place = false;                // a guard stands before the event, so it runs when the replay reaches it
  };

  // One way to run the step: its executor, and the place of each input of its schedule among the tensors.
  struct Variant {
    std::unique_ptr<Executor> executor;
    GraphSchedule plan;
    std::vector<size_t> inputs;
    size_t raises_before = 0;  // one past the last instruction whose error is undone
  };

  std::unique_ptr<Variant> variant_of(Compiled compiled);
  const Executor& running_executor() const { return *(fast_ != nullptr ? fast_ : exact_)->executor; }
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
  RunInputs inputs_of(const Variant& variant, RunInputs inputs, std::vector<at::Tensor> gathered) const;
  std::string run_event(size_t event, Program& program, const std::vector<at::Tensor>& tensors,
                        const std::vector<at::Tensor>& gradients, Undo* undo);

  Trace recorded_;
  Trace trace_;
  RaisingCalls raising_;
  PlanOptions options_;
  InputMap inputs_;
  std::unique_ptr<Variant> fast_;   // fast mode; runs instead of exact_ while it fits
  std::unique_ptr<Variant> exact_;  // made on demand
  std::unique_ptr<Variant> plain_;  // exists only while it runs
  Variant* instead_ = nullptr;      // runs instead of all others during a comparison
  ShowWritten show_written_;        // set for a dry run
  Graph fused_;                     // of a virtually captured step, for make_plain()
  bool ran_exact_ = false;
  std::vector<HostSupply> supplied_;  // fast mode: by the host code of the present run
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
