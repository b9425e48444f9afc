// Segments: a model in an unchanged loop. Calling the model runs the forward pass, the loop computes a loss from the
// outputs, and the backward pass returns here with the gradients of the outputs. Both passes are one recording, and one
// plan that pauses between them. A case that a plan cannot serve (a graph that is kept, a backward pass that begins
// differently) is left to eager, whose forward pass the door can run again.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/TensorImpl.h>

#include "engine/config.h"
#include "engine/plan/plan_cache.h"
#include "engine/plan/traced_step.h"
#include "engine/program/program.h"
#include "engine/program/step_input.h"
#include "engine/program/undo.h"
#include "engine/stats.h"

namespace stepc {

class StashedGradients;

class Segments {
 public:
  // Runs the forward pass eagerly and returns its outputs, detached.
  using ForwardFn = std::function<std::vector<at::Tensor>()>;
  // Runs the backward pass of that forward pass eagerly, from the gradients of its outputs (undefined: none). Leaves
  // the parameters' gradients in the parameters, and returns the gradients of the inputs that require one.
  using BackwardFn = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

  Segments(std::unique_ptr<Program> program, Config config);
  ~Segments();

  // One forward pass and the backward pass that follows it. May be dropped between the two.
  class Call {
   public:
    ~Call();
    // Whether this is the first call of its signature: it must run eagerly, so that the door sees what the loop does
    // with it.
    bool is_first() const { return is_first_; }
    // The number of calls in a row, with this one, that must run eagerly and be reported to Segments::took(): replays
    // are compared with them.
    int64_t compared() const { return compared_; }
    // Whether this replay must be reported to Segments::took().
    bool is_timed() const;
    // The common signature of all calls like this one; valid as long as its Segments.
    const std::string& signature() const { return signature_; }
    // The parameters that require a gradient.
    const std::vector<at::Tensor>& parameters() const { return parameters_; }
    std::vector<at::Tensor> forward(const ForwardFn& eager);
    // Returns the gradients of the inputs that require one, then those of parameters(); undefined if there is none. The
    // parameters' own gradients stay empty: the autograd engine accumulates into them.
    std::vector<at::Tensor> backward(const std::vector<at::Tensor>& gradients, const BackwardFn& eager);
    // Why backward() cannot run from these gradients, empty if it can. Throws UserError if no backward pass is possible
    // any more, because the program has changed what a replayed forward pass has read.
    std::string why_not_backward(const std::vector<at::Tensor>& gradients) const;

    // Eager runs this pass from here on, and all calls like it, with one warning.
    void leave(const std::string& why);
    // The same, but the next call is recorded again, until too many recordings have failed. `is_of_python`: the reason
    // is an effect that the model's own code repeats if it runs beside a plan.
    void leave_recording(const std::string& why, bool is_of_python);
    // The backward pass of a call that was left, from a forward pass that ran eagerly.
    std::vector<at::Tensor> eager_backward(const std::vector<at::Tensor>& gradients, const BackwardFn& eager);
    // Runs `part` on the buffers and random generators as the forward pass found them, then restores their present
    // state.
    void run_as_before(const std::function<void()>& part);
    // Whether the program has overwritten this output of the forward pass.
    bool is_changed(size_t output) const;

    // The door's number for the structure that the outputs of forward() are made into.
    int64_t structure = 0;

   private:
    friend class Segments;
    // kTrace: the model's own code runs beside its plan. kLook: replayed, and recorded beside the replay.
    enum class Mode : uint8_t { kRecord, kReplay, kTrace, kVerify, kLook, kEager };
    // The version of a tensor, without holding the tensor.
    struct Version {
      c10::VariableVersion counter;
      uint32_t then = 0;
      bool is_same() const { return !counter.enabled() || counter.current_version() == then; }
    };
    struct TracedCheck;
    struct Deleter {
      void operator()(TracedCheck* check) const;
    };
    Call(Segments& owner, StepInput input) : owner_(owner), input_(std::move(input)) {}

    PlanEntry* find_entry() const;
    std::vector<at::Tensor> record(const ForwardFn& eager);
    std::vector<at::Tensor> run_recorded(const ForwardFn& eager);
    std::optional<std::vector<at::Tensor>> replay();
    std::string difference_from_plain(const std::vector<at::Tensor>& replayed);
    void look_at_forward(const ForwardFn& eager);
    void look_at_backward(const std::vector<at::Tensor>& gradients, const BackwardFn& eager);
    std::string different() const;
    std::vector<at::Tensor> end_check(std::vector<at::Tensor> outputs, StashedGradients& stash);
    void note_pace();
    Program* with_host_state() const;
    std::optional<std::vector<at::Tensor>> trace_forward(const ForwardFn& eager);
    std::vector<at::Tensor> trace_backward(const std::vector<at::Tensor>& gradients, const BackwardFn& eager);
    TracedStep end_traced(StepOutput output);
    std::vector<at::Tensor> check_forward(const ForwardFn& eager);
    std::string difference_of_forward(const std::vector<at::Tensor>& outputs);
    std::vector<at::Tensor> check_backward(const std::vector<at::Tensor>& gradients, const BackwardFn& eager);
    bool left_while_checked();
    std::vector<at::Tensor> replay_backward(const std::vector<at::Tensor>& gradients);
    std::vector<at::Tensor> finish_recording(const std::vector<at::Tensor>& gradients, const BackwardFn& eager);
    std::vector<at::Tensor> joined(std::vector<at::Tensor> of_inputs, std::vector<at::Tensor> of_parameters) const;
    void drop();
    void note_versions(const std::vector<at::Tensor>& outputs);

    Segments& owner_;
    StepInput input_;
    Mode mode_ = Mode::kRecord;
    PlanEntry* entry_ = nullptr;  // during the forward pass
    std::string signature_;
    std::unique_ptr<RecordedStep> program_;
    std::unique_ptr<Recorder> recorder_;
    std::unique_ptr<TracedRun> traced_;            // kTrace, between the passes
    std::unique_ptr<TracedCheck, Deleter> check_;  // kVerify, of a traced plan
    std::shared_ptr<Plan> plan_;
    std::vector<at::Tensor> tensors_;
    std::vector<at::Tensor> parameters_;
    bool is_first_ = false;
    int64_t compared_ = 0;
    std::vector<Version> read_, given_;  // parameters and inputs; outputs
    std::optional<Undo> before_;         // state before the forward pass
    std::optional<Undo> looked_at_;      // the generators after a forward pass that was recorded beside a replay
    bool with_plain_ = false;            // verified with the plain Graph, which is paused meanwhile
    std::string difference_;             // found in the forward pass
    std::string wrong_rule_;             // of the program's own operator
  };

  // The next call, or nothing if the model runs eagerly: for good without a plan, or while another call is between its
  // two passes.
  std::unique_ptr<Call> begin(StepInput input);
  // The model runs eagerly for a reason that the door has seen. Warns once for each reason.
  void run_eagerly(const std::string& why);
  // The model has run eagerly without begin(), which would have returned no call again.
  void ran_eagerly() { ++stats_.eager_calls; }
  // The time of the loop from a call of this signature, which came to its backward pass, to the model's next call. If
  // replays do not pay, eager runs this signature from here on, with one warning.
  void took(const std::string& signature, bool as_it_is, double seconds);
  // Whether the model's own code runs at every call.
  bool is_traced() const { return plans_.is_traced(); }
  // Eager runs the calls of this signature from here on, with one warning.
  void leave(const std::string& signature, const std::string& why);

  const Stats& stats() const { return stats_; }
  std::string report() const;
  std::string graph_text() const { return plans_.graph_text(); }
  std::string schedule_text() const { return plans_.schedule_text(); }  // of the plan that ran last, empty without one

 private:
  std::vector<at::Tensor> list_without_gradients(const StepInput& input);
  std::vector<at::Tensor> buffers();
  std::vector<at::Generator> generators() const;

  std::unique_ptr<Program> program_;
  Config config_;
  Stats stats_;
  PlanCache plans_;
  int open_recordings_ = 0;
};

}  // namespace stepc
