// Tracer: a step's host code runs, and each call that it makes is compared with the next one of a Trace. Nothing is
// computed: what calls make looks right and has no memory, until a plan of the trace has run or until the step leaves
// the trace. From there on everything is computed, what was left out first.
//
// The host's side effects happen once, as in eager. Holds no tensor of the step: storages, weakly.
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

// What the host supplied in `recorded`, where a step that follows `trace`, with the same calls up to `end`, supplies it
// by then.
std::vector<HostSupply> numbers_supplied(const Trace& trace, const Trace& recorded, size_t end = SIZE_MAX);

// Whether host code may go two ways by them. Real numbers are the same but for rounding.
bool are_other_choices(const Arg& one, const Arg& other);
// "at model.py:12", where that is known.
std::string place_of_read(const Trace& trace, CallId call);

// How a step has left its trace.
struct Departure {
  std::string difference;         // what it did otherwise than the trace; empty: it follows it
  bool raised = false;            // that was a call that raised, which the step perhaps caught
  bool is_reseeded = false;       // or a random generator was in another state
  std::string decided;            // just before, the host read another truth or integer than the recorded one: where
  std::string decided_otherwise;  // the plan's truth or integer is another one than was computed then: where
};

class Tracer {
 public:
  // What the tracer asks for while the step runs.
  struct Plan {
    // The plan runs up to `trace`'s event of kind kRead; returns the number, or what a call of the host's is given.
    std::function<Arg(size_t event)> read;
    std::function<std::vector<at::Tensor>(size_t event)> reach;
    // The step leaves the trace: everything is to be as it was before it, its tensors and generators.
    std::function<void()> turn_back;
    // Another tracer that might go on, bound, its trace beginning with the same calls; nullptr: none is left. It is
    // asked for at the first call that is not the trace's.
    std::function<Tracer*()> other;
    std::function<void()> took_over;  // the last one does
    // The step leaves the trace, everything is as it was before it: what is to write it down, nullptr where nothing is.
    // Of a step that is computed as it comes: it begins.
    std::function<Recorder*()> record;
  };

  // `trace` is one that recordings agreed on call by call (ir/agree.h); it must outlive this.
  explicit Tracer(const Trace& trace);
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // Before each run. `externals`: the program's tensors, one for each of the trace's externals (constants undefined);
  // `generators`: one for each of its generators, the default one undefined.
  void bind(const std::vector<at::Tensor>& externals, std::vector<at::Generator> generators);
  // A step begins. With `computes` everything is computed as it comes: what a plan is compared with; only `plan.other`
  // and `plan.record` are asked then. `plan` has to be there until end().
  void begin(const Plan& plan, bool computes);
  // Runs a part of it on the calling thread: all, or what comes before or after a pause. What it throws passes through,
  // with everything computed that the step did.
  void run(const std::function<void()>& part);
  // The part before the pause has run; the program gets `outputs`. `structure` is the door's number for them.
  void pause(const std::vector<at::Tensor>& outputs, int64_t structure);
  // It comes back with these.
  void resume(const std::vector<at::Tensor>& incoming);
  // All parts have run.
  void end();

  // After run() it says whether the plan may run.
  [[nodiscard]] const Departure& departure() const;
  // What the host has read so far, by call.
  [[nodiscard]] const std::map<size_t, Arg>& numbers() const;
  // What the host has supplied so far, in the order of calls.
  [[nodiscard]] const std::vector<HostSupply>& supplied() const;

  // Tensors that the host has made so far, of its own data or by calls of its own, by the keys of the trace's externals
  // of kind kHost.
  [[nodiscard]] const std::map<std::string, at::Tensor>& host_data() const;

  // At the pause: its event, among the trace's.
  [[nodiscard]] size_t pause_event() const;

  // At the end, or at the pause: whether something holds memory of `value`'s storage, which the step made.
  [[nodiscard]] bool is_held(ValueId value) const;
  // A storage that is held and that none of `given` lies on, which the plan leaves: a value on it; invalid: none.
  [[nodiscard]] ValueId held_beside(const std::vector<ValueId>& given) const;
  // What holds it, while something does.
  [[nodiscard]] at::Tensor held(ValueId value) const;
  // The plan's result for `value`: who holds it finds it there. A copy is made where it is laid out otherwise.
  void give(ValueId value, const at::Tensor& result);
  // Instead: the step leaves the trace at its end.
  void leave(const Plan& plan, const std::string& why, bool records);
  // Lets go of the program's memory; the next run begins with bind().
  void release();

 private:
  friend void leave_trace(const std::string& why);
  friend bool is_tracing();
  friend bool show_memory(const at::Tensor& tensor, const void* values);
  friend void hide_memory(const at::Tensor& tensor);
  class Observer;
  std::shared_ptr<Observer> observer_;
};

// Ends the comparison of the step that runs on this thread, if one does: its tensors have values from here on, for code
// that reads them past the dispatcher.
void leave_trace(const std::string& why);
// Whether the calling thread runs a step beside a trace.
bool is_tracing();
// Before the tensor's memory is given to code whose reads and writes are no calls: it holds `values`, which the host
// has just read of all its elements. From there on the step leaves the trace where a call changes that memory. False:
// it is not there, because other elements lie beside these or the calls before have not changed it yet. Without a trace
// it is.
bool show_memory(const at::Tensor& tensor, const void* values);
// That code has let go of it.
void hide_memory(const at::Tensor& tensor);

}  // namespace stepc
