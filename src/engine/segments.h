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
  // Runs the forward pass as it is and returns its outputs, detached.
  using ForwardFn = std::function<std::vector<at::Tensor>()>;
  // Runs the backward pass of that forward pass as it is, from the gradients of its outputs (undefined: none): what it
  // finds for the parameters is left in their gradients, what it finds for the inputs that require one is returned.
  using BackwardFn = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

  Segments(std::unique_ptr<Program> program, Config config);
  ~Segments();

  // One forward pass and the backward pass that follows it. May be dropped between the two.
  class Call {
   public:
    ~Call();
    // Whether none like it has been seen: it is to run as it is, so that the door sees what the loop does with it.
    bool is_first() const { return is_first_; }
    // So many calls in a row, this one first, are to run as they are, and Segments::took() to be told of them: replays
    // are compared with them.
    int64_t compared() const { return compared_; }
    // Whether Segments::took() is to be told of this replay.
    bool is_timed() const;
    // What all calls that look like it have in common; good for as long as its Segments.
    const std::string& signature() const { return signature_; }
    // The parameters that require a gradient.
    const std::vector<at::Tensor>& parameters() const { return parameters_; }
    std::vector<at::Tensor> forward(const ForwardFn& eager);
    // Returns the gradients of the inputs that require one, then those of parameters(): undefined ones where there is
    // none. Nothing is left in the parameters' own gradients, which are the autograd engine's to accumulate.
    std::vector<at::Tensor> backward(const std::vector<at::Tensor>& gradients, const BackwardFn& eager);
    // Why backward() cannot be had from these gradients, empty where it can. Throws UserError where no backward pass
    // can be had any more, because the program has since changed what a replayed forward pass has read.
    std::string why_not_backward(const std::vector<at::Tensor>& gradients) const;

    // The pass is eager's from here on, and so are all that look like it, with one warning.
    void leave(const std::string& why);
    // The same, but the next one is recorded again, until that has been tried often enough.
    // `is_of_python`: the model's own code, beside a plan, would do it.
    void leave_recording(const std::string& why, bool is_of_python);
    // A backward pass of one that was left, from a forward pass that ran as it is.
    std::vector<at::Tensor> eager_backward(const std::vector<at::Tensor>& gradients, const BackwardFn& eager);
    // Runs `part` on buffers and random generators as the forward pass found them; afterwards they are as they were.
    void run_as_before(const std::function<void()>& part);
    // Whether the program has written over this output of the forward pass.
    bool is_changed(size_t output) const;

    // What the outputs of forward() are made into: a number of the door's.
    int64_t structure = 0;

   private:
    friend class Segments;
    // kTrace: the model's own code runs beside its plan. kLook: replayed, and recorded beside it
    enum class Mode : uint8_t { kRecord, kReplay, kTrace, kVerify, kLook, kEager };
    // How often a tensor was written to, without holding the tensor.
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
    PlanEntry* entry_ = nullptr;  // of the forward pass, while that runs
    std::string signature_;
    std::unique_ptr<RecordedStep> program_;
    std::unique_ptr<Recorder> recorder_;
    std::unique_ptr<TracedRun> traced_;            // kTrace, between its passes
    std::unique_ptr<TracedCheck, Deleter> check_;  // kVerify, of a traced plan
    std::shared_ptr<Plan> plan_;
    std::vector<at::Tensor> tensors_;
    std::vector<at::Tensor> parameters_;
    bool is_first_ = false;
    int64_t compared_ = 0;
    std::vector<Version> read_, given_;  // parameters and inputs; outputs
    std::optional<Undo> before_;         // the forward pass
    std::optional<Undo> looked_at_;      // the generators after a forward pass that was recorded beside a replay
    bool with_plain_ = false;            // verified with the plain Graph, which is paused meanwhile
    std::string difference_;             // found in its forward pass
    std::string wrong_rule_;             // of an operator of the program's own
  };

  // The call to make, or nothing where the model runs as it is: without a plan for good, or while another call is
  // between its two passes.
  std::unique_ptr<Call> begin(StepInput input);
  // The model runs as it is for a reason that the door has seen. One warning for each reason.
  void run_eagerly(const std::string& why);
  // The model has run as it is where begin() would have given no call again.
  void ran_eagerly() { ++stats_.eager_calls; }
  // From a call of this signature, which came to its backward pass, to the next call of the model: so long did the loop
  // take. Where its replays turn out not to pay, they are eager's from here on, with one warning.
  void took(const std::string& signature, bool as_it_is, double seconds);
  // Whether the model's own code runs at every call.
  bool is_traced() const { return plans_.is_traced(); }
  // The calls of this signature are eager's from here on, with one warning.
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
