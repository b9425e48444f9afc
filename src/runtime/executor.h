// Executor: a Schedule with everything bound: kernels, operators, constants, and a tensor over the arena for every
// operand there. Owns these; borrows the program's tensors for the length of a run (parameters and optimizer state stay
// bound between runs and are bound again when they move).
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
#include "runtime/device_graphs.h"
#include "runtime/dry_run.h"
#include "runtime/instruction_memory.h"
#include "runtime/kernel_sources.h"
#include "runtime/refused_programs.h"
#include "runtime/run_clocks.h"
#include "runtime/run_times.h"
#include "schedule/schedule.h"

namespace stepc {

class Ranks;

// A program's slot and the tensor that it gets; undefined: no tensor.
struct Bound {
  Owner owner = Owner::kGradient;
  std::string key;
  at::Tensor tensor;
};

struct StepResult {
  std::vector<at::Tensor> outputs;  // they own their storage and carry no grad_fn
  std::vector<Arg> numbers;         // the numbers that the step returns
  std::vector<Bound> rebindings;
  MemoryCounts memory;
  DeviceRuns on_device;  // earlier runs of this executor that the device has ended since the last result
  // Set if the run stopped early, with all fields above empty: a guard did not hold, or host code does something else.
  // What was written by then stays written.
  bool missed_guard = false;
  std::optional<size_t> missed_number;  // the number that the guard compares
  Arg read;                             // its value now; at a pause: the number that the program reads there
  std::string stopped;                  // why on_event stopped the run
  // Set if the run is paused: what the program gets there. resume() or abandon() follows.
  bool paused = false;
  uint32_t event = 0;  // of the pause
  std::vector<at::Tensor> given;

  [[nodiscard]] bool is_whole() const { return !missed_guard && stopped.empty() && !paused; }
};

// What a run borrows from the program.
struct RunInputs {
  std::vector<at::Tensor> tensors = {};  // one for each of schedule().inputs; undefined if not the program's
  // One for each of schedule().generators. An undefined one stands for the process's default generator, or for one that
  // the step makes.
  std::vector<at::Generator> generators = {};
  // Called at each event with its number and the tensors that the event gets; runs the program's host code. Returns why
  // the run cannot continue, empty if it can.
  std::function<std::string(size_t event, const std::vector<at::Tensor>& given)> on_event = nullptr;
  RunTimes* times = nullptr;   // receives the times of the instructions, if set
  bool tells_autograd = true;  // of its writes; false if the program has made these calls itself
  // Sees the results of every instruction right after the instruction, if set. May not allocate through ATen.
  std::function<void(size_t instruction, const at::Tensor& written)> on_written = nullptr;
  ShowWritten show_written = nullptr;  // if set, the run is a dry run. Generators and host code keep their changes
  std::optional<uint64_t> step = {};   // of a function that a step runs several times: the step's number
  // By returned tensor, the memory to make it in, of its look; undefined: it brings its own. A result that is a window
  // brings its own too.
  std::vector<at::Tensor> results = {};
};

class Executor {
 public:
  // Throws RefusedPrograms. Throws UserError if the schedule names an operator that this LibTorch lacks, or is one
  // rank's of another mesh than that of `ranks`. `kernels`: none for a schedule of ATen calls only. On several ranks
  // all make their executors together and run them together.
  Executor(Schedule schedule, KernelSources* kernels, std::shared_ptr<Ranks> ranks = nullptr,
           const GraphUse& device_graphs = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Compares the program's tensors, one for each of schedule().inputs, with those that the executor was made for:
  // element types, sizes, strides, and which of them share memory. Returns the difference, empty if there is none.
  std::string why_not(const std::vector<at::Tensor>& tensors);

  // From now on the trace's `call` gets `number` as its argument `arg`.
  void supply(CallId call, size_t arg, const c10::IValue& number);
  // The host has supplied a number that the schedule cannot take: an integer other than the constant in it.
  bool is_unfit() const;

  // Runs the step once on the calling thread, in its arena. The tensors must fit. An exception of a kernel passes
  // through with the instruction's name added; what the step wrote by then stays written, as in eager. After a missed
  // guard the generators have their states from before the run.
  StepResult run(RunInputs inputs);
  // Continues after a pause with the tensors of the program; other strides are converted. Throws UserError for tensors
  // that do not fit in another way, and then abandons the run.
  StepResult resume(std::vector<at::Tensor> incoming);
  void abandon();
  bool is_paused() const;
  // Whether the last run was to record device launches; the same on all ranks.
  bool has_tried_graphs() const;
  // Whether it has recorded any; of this rank alone.
  bool has_recorded_graphs() const { return graphs_recorded() > graphs_of_last_run(); }
  // Device launches recorded in all runs, and in all runs before the last one; the last run may have used the latter.
  uint64_t graphs_recorded() const;
  uint64_t graphs_of_last_run() const;
  // The instruction that the last throwing run had reached.
  size_t failed_at() const;

  const Schedule& schedule() const;
  // From which runs draw that are given no other: the default one of the Graph's device.
  at::Generator generator() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stepc
