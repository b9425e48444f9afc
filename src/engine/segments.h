// A model whose loop stays as it is: calling it runs the forward pass, the loop makes a loss of the outputs, and its
// backward pass comes back to us with their gradients. Both parts are one recording, and one plan that pauses between.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/plan_cache.h"
#include "engine/program.h"
#include "engine/stats.h"
#include "engine/step_input.h"

namespace stepc {

class Segments {
 public:
  // Runs the forward pass as it is and returns its outputs, detached.
  using ForwardFn = std::function<std::vector<at::Tensor>()>;
  // Runs the backward pass of that forward pass as it is, from the gradients of its outputs (undefined: none), and
  // returns the gradients of the inputs that require one. Parameters' gradients accumulate.
  using BackwardFn = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

  Segments(std::unique_ptr<Program> program, Config config);
  ~Segments();

  // One forward pass and the backward pass that follows it. May be dropped between the two.
  class Call {
   public:
    ~Call();
    // Gradients are neither read nor written before the backward pass.
    std::vector<at::Tensor> forward(const ForwardFn& eager);
    std::vector<at::Tensor> backward(const std::vector<at::Tensor>& gradients, const BackwardFn& eager);
    // What the outputs of forward() are made into: a number of the door's.
    int64_t structure = 0;

   private:
    friend class Segments;
    enum class Mode : uint8_t { kRecord, kReplay, kVerify, kEager };
    Call(Segments& owner, StepInput input) : owner_(owner), input_(std::move(input)) {}

    std::vector<at::Tensor> record(const ForwardFn& eager);
    std::optional<std::vector<at::Tensor>> replay();
    std::string difference_from_plain(const std::vector<at::Tensor>& replayed);
    std::vector<at::Tensor> verify_forward(const ForwardFn& eager, std::vector<at::Tensor> replayed);
    std::string different() const;
    std::vector<at::Tensor> verify_backward(const std::vector<at::Tensor>& gradients, const BackwardFn& eager);
    std::vector<at::Tensor> finish_recording(const std::vector<at::Tensor>& gradients, const BackwardFn& eager);

    Segments& owner_;
    StepInput input_;
    Mode mode_ = Mode::kRecord;
    PlanEntry* entry_ = nullptr;
    std::string signature_;
    std::unique_ptr<RecordedStep> program_;
    std::unique_ptr<Recorder> recorder_;
    std::shared_ptr<Plan> plan_;
    std::vector<at::Tensor> tensors_;
    bool with_plain_ = false;  // verified with the plain Graph, which is paused meanwhile
    std::string difference_;   // found in its forward pass
  };

  // The call to make, or nothing where the model runs as it is: without a plan for good, or while another call is
  // between its two passes.
  std::unique_ptr<Call> begin(StepInput input);

  const Stats& stats() const { return stats_; }
  std::string report() const;
  std::string graph_text() const;
  std::string schedule_text() const;  // of the plan that ran last, empty without one

 private:
  std::unique_ptr<Program> program_;
  Config config_;
  Stats stats_;
  PlanCache plans_;
  int open_recordings_ = 0;
};

}  // namespace stepc
