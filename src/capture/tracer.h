// Tracer: a step's host code runs, and each of its calls is compared with the next one of a Trace. Nothing is computed:
// results of calls look right and have no memory, until a plan of the trace has run or the step leaves the trace. After
// that everything is computed, first the calls that were left out.
//
// The host's side effects happen once, as in eager. Holds no tensor of the step, only weak references to storages.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "ir/trace.h"

namespace stepc {

class Recorder;

// A number (or a list of numbers, or a 0-dim number tensor) that the host passes as argument `arg` of `call`.
struct HostSupply {
  CallId call;
  size_t arg = 0;
  c10::IValue number;
};

// The numbers that the host supplied in `recorded`, for a step that follows `trace` with the same calls up to `end`.
std::vector<HostSupply> numbers_supplied(const Trace& trace, const Trace& recorded, size_t end = SIZE_MAX);

// Whether host code may branch on the difference. Real numbers that differ by rounding only are the same.
bool are_other_choices(const Arg& one, const Arg& other);
// "at model.py:12"; empty if unknown.
std::string place_of_read(const Trace& trace, CallId call);

// How a step has left its trace.
struct Departure {
  std::string difference;         // between the step and the trace; empty: the step follows the trace
  bool raised = false;            // the difference is a call that raised; the step may have caught the error
  bool is_reseeded = false;       // or a random generator was in another state
  std::string decided;            // where the host, just before, read a boolean or integer other than the recorded one
  std::string decided_otherwise;  // where the plan's boolean or integer differs from the one computed then
};

class Tracer {
 public:
  // What the tracer asks for while the step runs.
  struct Callbacks {
    // read(): the plan runs up to `trace`'s event of kind kRead and returns the number. reach(): the same for a call of
    // the host's; returns the tensors that the call gets.
    std::function<Arg(size_t event)> read;
    std::function<std::vector<at::Tensor>(size_t event)> reach;
    // The step leaves the trace: restores the state before it, tensors and generators.
    std::function<void()> turn_back;
    // The next tracer that might continue, bound, with a trace that begins with the same calls; nullptr: none is left.
    // Called at the first call that is not the trace's.
    std::function<Tracer*()> other;
    std::function<void()> took_over;  // the tracer of the last other() takes over
    // The step leaves the trace, in the restored state: returns the recorder for it, nullptr if it is not recorded.
    // Also called at the beginning of a step that is computed as it comes.
    std::function<Recorder*()> record;
  };

  // `trace` is one that recordings agreed on call by call (ir/agree.h). It must outlive this object.
  explicit Tracer(const Trace& trace);
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // Called before each run. `externals`: the program's tensors, one for each of the trace's externals (constants
  // undefined). `generators`: one for each of its generators, the default one undefined.
  void bind(const std::vector<at::Tensor>& externals, std::vector<at::Generator> generators);
  // Begins a step. With `computes` every call is computed as it comes, for comparison with a plan; only
  // `callbacks.other` and `callbacks.record` are called then. `callbacks` must live until end().
  void begin(const Callbacks& callbacks, bool computes);
  // Runs a part of the step on the calling thread: all of it, or what comes before or after a pause. Exceptions pass
  // through after everything that the step did is computed.
  void run(const std::function<void()>& part);
  // The part before the pause has run; the program gets `outputs`. `structure` is the door's number for their
  // structure.
  void pause(const std::vector<at::Tensor>& outputs, int64_t structure);
  // The program resumes with these tensors.
  void resume(const std::vector<at::Tensor>& incoming);
  // All parts have run.
  void end();

  // How the step has left its trace; after run() it says whether the plan may run.
  [[nodiscard]] const Departure& departure() const;
  // The numbers that the host has read so far, by call.
  [[nodiscard]] const std::map<size_t, Arg>& numbers() const;
  // The numbers that the host has supplied so far, in the order of calls.
  [[nodiscard]] const std::vector<HostSupply>& supplied() const;

  // Tensors that the host has made so far, from its own data or by calls of its own, by the keys of the trace's
  // externals of kind kHost.
  [[nodiscard]] const std::map<std::string, at::Tensor>& host_data() const;

  // At the pause: the number of its event in the trace.
  [[nodiscard]] size_t pause_event() const;

  // At the end, or at the pause: whether something holds memory of `value`'s storage, which the step made.
  [[nodiscard]] bool is_held(ValueId value) const;
  // A value on a storage that is held and that the plan leaves, but on which none of `given` lies; invalid: there is
  // none.
  [[nodiscard]] ValueId held_beside(const std::vector<ValueId>& given) const;
  // The tensor on the held storage of `value`, as long as something holds it.
  [[nodiscard]] at::Tensor held(ValueId value) const;
  // Gives the plan's result for `value` to its holders. Copies it if its layout differs.
  void give(ValueId value, const at::Tensor& result);
  // Instead of giving results: the step leaves the trace at its end.
  void leave(const Callbacks& callbacks, const std::string& why, bool records);
  // Releases the program's memory; the next run begins with bind().
  void release();

 private:
  friend void leave_trace(const std::string& why);
  friend bool is_tracing();
  friend bool show_memory(const at::Tensor& tensor, const void* values);
  friend void hide_memory(const at::Tensor& tensor);
  class Observer;
  std::shared_ptr<Observer> observer_;
};

// Ends the comparison of the step that runs on this thread, if there is one. Its tensors have values from here on, for
// code that reads them without the dispatcher.
void leave_trace(const std::string& why);
// Whether the calling thread runs a step beside a trace.
bool is_tracing();
// Called before the tensor's memory is given to code whose reads and writes are not calls: the memory then holds
// `values`, which the host has just read from all its elements. After that, a call that changes this memory makes the
// step leave the trace. Returns false if the memory cannot be shown, because other elements lie between these, or
// because earlier calls have not changed it yet. Returns true without a trace.
bool show_memory(const at::Tensor& tensor, const void* values);
// That code has released the memory.
void hide_memory(const at::Tensor& tensor);

}  // namespace stepc
