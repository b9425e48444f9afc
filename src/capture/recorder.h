// Capture by recording: runs a step eagerly and writes down every ATen call, alias and allocation as a Trace, and what
// the host had to do with it: numbers it read, generators it set, optimizers it ran. Changes nothing about how the step
// runs: it holds no tensor, only weak references to storages.
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

// Host data larger than this is no constant of a program: its bytes are not kept.
constexpr size_t kMaxConstantBytes = size_t{1} << 20;

// A tensor that the program owns, as found right now. Undefined gradients are listed too.
struct OwnedTensor {
  Owner owner = Owner::kCaptured;
  std::string key;
  at::Tensor tensor;
};

// The same before a step that has begun: the tensor may be gone by now.
struct OwnedBefore {
  OwnedBefore(Owner owner, std::string key, const at::Tensor& tensor);
  Owner owner;
  std::string key;
  Value window;      // on the whole storage, which is left unset
  at::Tensor batch;  // itself, of the batch: that is there throughout
  c10::StorageImpl* storage = nullptr;
  // Keeps the address of a storage that dies during the step from meaning another one.
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> weak;
};

// The program around a step, as a recording sees it.
class RecordedProgram {
 public:
  virtual ~RecordedProgram() = default;
  // All tensors that outlive the step. Asked before the step and after it, because gradients come and go.
  virtual std::vector<OwnedTensor> list() = 0;
  // Random generators that outlive the step, beside the process's default one.
  virtual std::vector<std::pair<std::string, at::Generator>> generators() { return {}; }
  // Whether a replay can give the program's slot another tensor, as the step may have done.
  virtual bool can_rebind(Owner owner) { return owner == Owner::kGradient; }
  // Adds events that the program cannot mark with HostEventScope; they cannot be run eagerly.
  virtual void find_events(Trace&) {}
  // What the program says of operators of its own.
  virtual const OpRules& op_rules() {
    static const OpRules kNone;
    return kNone;
  }
  // The line of the user's source that runs now, "model.py:12", empty if unknown.
  virtual std::string source_line() { return {}; }
  // Lets go of tensors that only garbage holds, of objects that were just made or of all.
  virtual void settle(bool /*all*/) {}
};

// What a step returned, its structure left to the door.
struct StepOutput {
  std::vector<at::Tensor> tensors;
  std::vector<Arg> numbers;
  double own_seconds = 0;  // of an eager call, what the program's own function took of it; 0: all
};

// Something that outlives the step and that the program did not list.
struct Unowned {
  Unowned(at::Tensor t, std::string why) : tensor(std::move(t)), obstacle(std::move(why)) {}
  Unowned(at::Generator g, std::string why) : generator(std::move(g)), obstacle(std::move(why)) {}
  at::Tensor tensor;        // its storage as bytes
  ValueId made;             // its window on all of that, of one that the step made; invalid: it was there, or has none
  at::Generator generator;  // or this
  std::string obstacle;     // why the trace cannot be replayed while nobody owns it
};

struct Recording {
  Trace trace;
  // The step's own results, tensors detached. They are the program's: nothing else refers to them.
  StepOutput output;
  // Why the trace must not be replayed, one sentence each with the op and the module; empty if it may be, once
  // `unowned` are explained.
  std::vector<std::string> obstacles;
  std::vector<Unowned> unowned;
  // What the step did outside of tensors, which only its own host code can do again.
  std::vector<std::string> effects;
  bool is_left = false;         // it has no trace: what the program asks of the step, no plan can give
  bool raised = false;          // some call ended with an error, which the step caught
  uint64_t peak_bytes = 0;      // largest sum of live bytes that the eager step allocated
  double overhead_seconds = 0;  // spent recording, kernels excluded
  double settle_seconds = 0;    // the program dropped its garbage
};

// One digit a tensor.
std::string which_are_defined(const std::vector<at::Tensor>& incoming);

// A recording in parts, for a step that the program leaves and comes back to.
//
// With `kernels`, which must outlive it, nothing is computed: every call runs on them (capture/virtual/
// virtual_kernels.h). The trace is the same but for allocations, which there are none of. What the step makes and
// writes then has no values: the caller drops it, and calls kernels->restore(). A call that needs a value that was
// never computed ends the step with UserError.
class Recorder {
 public:
  // Throws UserError when another library owns the dispatch key.
  explicit Recorder(RecordedProgram& program, VirtualKernels* kernels = nullptr);
  // Of a step that runs beside a trace (capture/tracer.h) and leaves it: what it has done by then is done again.
  Recorder(RecordedProgram& program, std::vector<OwnedBefore> before);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Runs a part of the step. Throws UserError inside another recording; what `part` throws passes through.
  void run(const std::function<void()>& part);
  // From now on held_tensors() knows what the step makes.
  void note_made();
  // The program gets `outputs`, which the step made. `structure` is the door's number for what they are made into.
  void pause(const std::vector<at::Tensor>& outputs, int64_t structure);
  // It comes back with these, undefined ones among them: the pause's key is `structure` and which_are_defined().
  void resume(const std::vector<at::Tensor>& incoming);
  // Ends the recording; the last part has run. Throws UserError where a call is not what its rule says.
  Recording finish(StepOutput output);

  // Of a step that has left its trace: writes down allocations, from here to finish(), on the calling thread.
  const std::shared_ptr<class RecordingState>& take_over();
  // It does not.
  void stop();

 private:
  RecordedProgram& program_;
  std::unique_ptr<AllocationScope> allocations_;
  std::shared_ptr<class RecordingState> state_;
};

// Runs `step` once, recording. Whatever `step` throws passes through, with the recorder taken down. Throws UserError
// when another library owns the dispatch key, inside another recording, or where a call is not what its rule says.
Recording record(RecordedProgram& program, const std::function<StepOutput()>& step, VirtualKernels* kernels = nullptr);

// Takes the dispatch key and the allocator hook for this process; record() does it too. Idempotent.
void install_recorder();

// True while the calling thread records.
bool is_recording();

// ---- called by the step while it is recorded; nothing happens otherwise

// The calls until the scope ends are made by host code that has state of its own: see HostEvent.
class HostEventScope {
 public:
  explicit HostEventScope(std::string key);
  ~HostEventScope();
  HostEventScope(const HostEventScope&) = delete;
  HostEventScope& operator=(const HostEventScope&) = delete;
};

// How many numbers the host has read so far, and that it compared one of them: what a number decides is a guard, even
// where it is also passed on.
size_t host_reads_so_far();
void report_comparison(size_t read);

// The tensors that the calling thread's step, recorded or traced, has made before its pause and that Python objects
// refer to, in the order of calls; not those that autograd alone saves. Asked with the GIL.
std::vector<at::Tensor> held_tensors();
// The step has made this tensor by no call that a recording sees: Tensor.data.
void note_made(const at::Tensor& tensor);

// Whether a call of the recording has made what the tensor lies in. What other threads make meanwhile it does not know.
bool has_made(const at::Tensor& tensor);

// The step does something that a recording cannot hold.
void report_obstacle(const std::string& reason);
// The step does something outside of tensors.
void report_effect(const std::string& effect);

}  // namespace stepc
