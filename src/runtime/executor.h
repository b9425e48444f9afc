// Executor: a Schedule with everything bound: kernels, operators, constants, a tensor over the arena for every operand
// that lies there. Owns those; borrows the program's tensors for the length of a run (parameters and optimizer state
// stay bound between runs and are bound anew when they move).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "ir/trace.h"
#include "runtime/dry_run.h"
#include "runtime/instruction_memory.h"
#include "runtime/kernel_sources.h"
#include "runtime/run_times.h"
#include "schedule/schedule.h"

namespace stepc {

class Ranks;

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
  // Set when the run stopped early, with everything above empty: a guard did not hold, or host code does something
  // else. What was written until then stays written.
  bool missed_guard = false;
  std::optional<size_t> missed_number;  // of a guard that looks at a number: which,
  Arg read;                             // and what it was instead; of a pause: the number that the program reads there
  std::string stopped;                  // why on_event stopped it
  // Set when the run came to a pause: what the program gets there. resume() or abandon() follows.
  bool paused = false;
  uint32_t event = 0;  // which
  std::vector<at::Tensor> given;

  [[nodiscard]] bool is_whole() const { return !missed_guard && stopped.empty() && !paused; }
};

// What a run borrows from the program.
struct RunInputs {
  std::vector<at::Tensor> tensors = {};  // one for each of schedule().inputs; what is none of the program's: undefined
  // One for each of schedule().generators; undefined: the default one is the process's, and others are the step's own.
  std::vector<at::Generator> generators = {};
  // Called at each event with its number and the tensors that it is given; runs the program's host code. Returns why
  // the run cannot go on, empty if it can.
  std::function<std::string(size_t event, const std::vector<at::Tensor>& given)> on_event = nullptr;
  RunTimes* times = nullptr;   // gets when each instruction ran, if there is one
  bool tells_autograd = true;  // of what it writes; not where the program has made these calls itself
  // Sees the results of every instruction as they are made, if there is one. May not allocate through ATen.
  std::function<void(size_t instruction, const at::Tensor& written)> on_written = nullptr;
  ShowWritten show_written = nullptr;  // set: a dry run. Generators go on as ever, and host code leaves what it leaves
};

// Programs of the schedule that no code could be generated for.
class RefusedPrograms : public std::runtime_error {
 public:
  explicit RefusedPrograms(std::map<uint32_t, std::string> which)
      : std::runtime_error(which.begin()->second), why(std::move(which)) {}
  std::map<uint32_t, std::string> why;  // by program
};

class Executor {
 public:
  // Throws RefusedPrograms; UserError when the schedule names an operator that this LibTorch does not have, or is one
  // rank's of a mesh that `ranks` are not. `kernels`: none for a schedule of ATen calls alone. Of several ranks all
  // make theirs, and run it, together. `device_graphs`: see runtime/device_graphs.h.
  Executor(Schedule schedule, KernelSources* kernels, std::shared_ptr<Ranks> ranks = nullptr,
           bool device_graphs = false);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Whether the program's tensors, one for each of schedule().inputs, are what this was made for: element types, sizes,
  // strides, and which of them share memory. Returns why not, empty if they are.
  std::string why_not(const std::vector<at::Tensor>& tensors);

  // From now on the trace's `call` is given `number` as its argument `arg`.
  void supply(CallId call, size_t arg, const c10::IValue& number);
  // The host has supplied what the schedule cannot take: another integer than the one built in.
  bool is_unfit() const;

  // Runs the step once on the calling thread, in its arena. The tensors must fit. Whatever a kernel throws passes
  // through with the instruction named; what the step wrote until then stays written, as in eager. After a guard that
  // missed the generators are what they were.
  StepResult run(RunInputs inputs);
  // Goes on after a pause with what the program came back with; strides are made to fit. Throws UserError when it does
  // not fit otherwise, and abandons the run then.
  StepResult resume(std::vector<at::Tensor> incoming);
  void abandon();
  bool is_paused() const;
  // Launches of a device that were recorded in all runs, and in all before the last, which may have used those.
  uint64_t graphs_recorded() const;
  uint64_t graphs_of_last_run() const;
  // The instruction that the last run to throw had come to.
  size_t failed_at() const;

  const Schedule& schedule() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stepc
