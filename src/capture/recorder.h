// Capture by recording: runs a step eagerly and records every ATen call, alias and allocation as a Trace, with the
// actions of the host: numbers that it read, generators that it set, optimizers that it ran. Does not change how the
// step runs: it holds no tensor, only weak references to storages.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "capture/op_rule.h"
#include "ir/trace.h"

namespace stepc {

class AllocationScope;
class VirtualKernels;

// Host data larger than this is not a constant of a program: its bytes are not kept.
constexpr size_t kMaxConstantBytes = size_t{1} << 20;

// A tensor that the program owns now. The list includes undefined gradients.
struct OwnedTensor {
  Owner owner = Owner::kCaptured;
  std::string key;
  at::Tensor tensor;
};

// The same, but from before a step that has begun: the tensor may be gone by now.
struct OwnedBefore {
  OwnedBefore(Owner owner, std::string key, const at::Tensor& tensor);
  Owner owner;
  std::string key;
  Value window;      // on the whole storage, whose id is left unset
  at::Tensor batch;  // the tensor itself, if of the batch, which lives throughout
  c10::StorageImpl* storage = nullptr;
  // Keeps the address of a storage that dies during the step from being reused for another one.
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> weak;
};

// The program around a step, as a recording sees it.
class RecordedProgram {
 public:
  virtual ~RecordedProgram() = default;
  // All tensors that outlive the step. Called before and after the step, because gradients come and go.
  virtual std::vector<OwnedTensor> list() = 0;
  // Random generators that outlive the step, beside the process's default one.
  virtual std::vector<std::pair<std::string, at::Generator>> generators() { return {}; }
  // Whether a replay can give the program's slot another tensor, as the step may do.
  virtual bool can_rebind(Owner owner) { return owner == Owner::kGradient; }
  // Adds events that the program cannot mark with HostEventScope; these events cannot run eagerly.
  virtual void find_events(Trace&) {}
  // The program's rules for its own operators.
  virtual const OpRules& op_rules() {
    static const OpRules kNone;
    return kNone;
  }
  // The present line of the user's source, "model.py:12"; empty if unknown.
  virtual std::string source_line() { return {}; }
  // Releases tensors that only garbage holds: of objects that were made lately, or of all objects.
  virtual void settle(bool /*all*/) {}
};

// What a step returned. The door keeps its structure.
struct StepOutput {
  std::vector<at::Tensor> tensors;
  std::vector<Arg> numbers;
  double own_seconds = 0;  // of an eager call: the time of the program's own function; 0: of all of it
};

// Something that outlives the step and that the program did not list.
struct Unowned {
  Unowned(at::Tensor t, std::string why) : tensor(std::move(t)), obstacle(std::move(why)) {}
  Unowned(at::Generator g, std::string why) : generator(std::move(g)), obstacle(std::move(why)) {}
  at::Tensor tensor;        // its storage as bytes
  ValueId made;             // of a tensor that the step made: a value on the whole storage; else invalid
  at::Generator generator;  // instead of a tensor
  std::string obstacle;     // why the trace cannot be replayed as long as it has no owner
};

struct Recording {
  Trace trace;
  // The step's own results, with tensors detached. They belong to the program: nothing else refers to them.
  StepOutput output;
  // Why the trace must not be replayed, one sentence each with the op and the module. Empty: it may be replayed as soon
  // as `unowned` is explained.
  std::vector<std::string> obstacles;
  std::vector<Unowned> unowned;
  // Effects of the step outside tensors, which only its own host code can repeat.
  std::vector<std::string> effects;
  bool is_left = false;         // it has no trace: no plan can do what the program asks of the step
  bool raised = false;          // a call ended with an error, which the step caught
  uint64_t peak_bytes = 0;      // largest sum of live bytes that the eager step allocated
  double overhead_seconds = 0;  // spent recording, without kernels
  double settle_seconds = 0;    // spent while the program collected its garbage
};

// One digit for each tensor.
std::string which_are_defined(const std::vector<at::Tensor>& incoming);

// A recording in parts, for a step that the program leaves and resumes.
//
// With `kernels`, which must outlive the recorder, nothing is computed: every call runs on them
// (capture/virtual/virtual_kernels.h). The trace is the same, but without allocations. What the step makes and writes
// then has no values: the caller drops it and calls kernels->restore(). A call that needs a value that was never
// computed ends the step with UserError.
class Recorder {
 public:
  // Throws UserError if another library owns the dispatch key.
  explicit Recorder(RecordedProgram& program, VirtualKernels* kernels = nullptr);
  // For a step that ran beside a trace (capture/tracer.h) and leaves it: what it has done so far is done again.
  Recorder(RecordedProgram& program, std::vector<OwnedBefore> before);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Runs a part of the step. Throws UserError inside another recording. Exceptions of `part` pass through.
  void run(const std::function<void()>& part);
  // From this call on, held_tensors() knows what the step makes.
  void note_made();
  // The program gets `outputs`, which the step made. `structure` is the door's number for the structure that they are
  // made into.
  void pause(const std::vector<at::Tensor>& outputs, int64_t structure);
  // The program resumes with these tensors, some of them undefined: the pause's key is `structure` and
  // which_are_defined().
  void resume(const std::vector<at::Tensor>& incoming);
  // Ends the recording after the last part. Throws UserError if a call contradicts its rule.
  Recording finish(StepOutput output);

  // For a step that has left its trace: records allocations on the calling thread until finish().
  const std::shared_ptr<class RecordingState>& take_over();
  // Stops recording allocations.
  void stop();

 private:
  RecordedProgram& program_;
  std::unique_ptr<AllocationScope> allocations_;
  std::shared_ptr<class RecordingState> state_;
};

// Runs `step` once and records it. Exceptions of `step` pass through, after the recorder is taken down. Throws
// UserError if another library owns the dispatch key, inside another recording, or if a call contradicts its rule.
Recording record(RecordedProgram& program, const std::function<StepOutput()>& step, VirtualKernels* kernels = nullptr);

// Takes the dispatch key and the allocator hook for this process, as record() does. Idempotent.
void install_recorder();

// True while the calling thread records.
bool is_recording();

// ---- called by the step while it is recorded; without effect otherwise

// Host code with state of its own makes the calls until the scope ends: see HostEvent.
class HostEventScope {
 public:
  explicit HostEventScope(std::string key);
  ~HostEventScope();
  HostEventScope(const HostEventScope&) = delete;
  HostEventScope& operator=(const HostEventScope&) = delete;
};

// host_reads_so_far(): how many numbers the host has read. report_comparison(): the host compared one of them. A number
// that decides something is a guard, even if it is passed on as well.
size_t host_reads_so_far();
void report_comparison(size_t read);

// The tensors that the calling thread's step, recorded or traced, has made before its pause and to which Python objects
// refer, in the order of calls; without those that only autograd saves. The caller holds the GIL.
std::vector<at::Tensor> held_tensors();
// The step has made this tensor without a call that a recording sees: Tensor.data.
void note_made(const at::Tensor& tensor);

// Whether a call of the recording has made the tensor's memory. Knows nothing of what other threads make meanwhile.
bool has_made(const at::Tensor& tensor);

// The step does something that a recording cannot hold.
void report_obstacle(const std::string& reason);
// The step does something outside tensors.
void report_effect(const std::string& effect);

}  // namespace stepc
