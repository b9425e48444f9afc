// Executable: a Schedule with its ATen operators resolved, its constants converted and a tensor over the arena for
// every value that lives there. Owns those tensors; borrows the program's tensors for the length of a run (parameters
// and optimizer state stay bound between runs and are rebound when they change).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ir/trace.h"
#include "runtime/planned_memory.h"
#include "schedule/schedule.h"

namespace stepc {

struct StepResult {
  std::vector<at::Tensor> outputs;                            // own their storage, carry no grad_fn
  std::vector<std::pair<std::string, at::Tensor>> gradients;  // new gradient of each parameter named; undefined: none
  MemoryCounts memory;
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
  std::string why_not(const std::vector<at::Tensor>& externals) const;

  // Runs the step once on the calling thread, in its arena. `externals` must fit. Whatever a kernel throws passes
  // through with the call named; what the step wrote until then stays written, as in eager.
  StepResult run(const std::vector<at::Tensor>& externals);

  const Trace& trace() const;
  const Schedule& schedule() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stepc
