// Executable: a Schedule with its ATen operators resolved, its constants converted and a tensor over the arena for
// every value that lives there. Owns those tensors; borrows the program's tensors for the length of a run (parameters
// and optimizer state stay bound between runs and are rebound when they change).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "ir/trace.h"
#include "runtime/planned_memory.h"
#include "runtime/run_times.h"
#include "schedule/schedule.h"

namespace stepc {

// A program's slot and the tensor that it gets; undefined: none.
struct Bound {
  Owner owner = Owner::kGradient;
  std::string key;
  at::Tensor tensor;
};

struct StepResult {
  std::vector<at::Tensor> outputs;  // own their storage, carry no grad_fn
  std::vector<Arg> numbers;         // what the step returns beside tensors
  std::vector<Bound> rebindings;
  MemoryCounts memory;
  bool of_graph = false;  // else the recorded calls ran
  // Set when the run stopped early, with everything above empty: the step reads another number than recorded, or host
  // code does something else. What was written until then stays written.
  std::optional<size_t> missed_read;  // index into trace().reads
  Arg read;                           // what was read instead
  std::string stopped;                // why on_event stopped it
  // Set when the run came to a pause: what the program gets there. resume() or abandon() follows.
  bool paused = false;
  std::vector<at::Tensor> given;
};

// What a run borrows from the program.
struct RunInputs {
  std::vector<at::Tensor> externals;  // one for each of trace().externals; constants are left undefined
  std::vector<at::Generator>
      generators;  // one for each of trace().generators; the default and the step's own undefined
  // Called at each event with its index and the gradients that it finds; runs the program's host code. Returns why the
  // run cannot go on, empty if it can.
  std::function<std::string(size_t event, const std::vector<Bound>& gradients)> on_event;
  RunTimes* times = nullptr;  // gets when each instruction ran, if there is one
};

class Executable {
 public:
  // Throws UserError when the trace names an operator that this LibTorch does not have.
  Executable(Trace trace, Schedule schedule);
  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  // Whether the program's tensors, one for each of trace().externals, are what this was built for: element types,
  // sizes, strides, and which of them share memory. Returns why not, empty if they are.
  std::string why_not(const std::vector<at::Tensor>& externals);

  // From now on `call` is given `number` as its argument `arg`.
  void supply(CallId call, size_t arg, const c10::IValue& number);

  // Runs the step once on the calling thread, in its arena. The externals must fit. Whatever a kernel throws passes
  // through with the call named; what the step wrote until then stays written, as in eager.
  StepResult run(const RunInputs& inputs);
  // Goes on after a pause with what the program came back with; strides are made to fit. Throws UserError when it does
  // not fit otherwise, and abandons the run then.
  StepResult resume(std::vector<at::Tensor> incoming);
  void abandon();
  bool is_paused() const;

  const Trace& trace() const;
  const Schedule& schedule() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stepc
