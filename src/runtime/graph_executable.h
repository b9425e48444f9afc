// GraphExecutable: a Graph bound to kernels, the `fast` counterpart of Executable. Owns what the step makes while it
// runs; borrows the program's tensors for the length of a run. What it writes into the program is written at the end,
// after every guard has held.
#pragma once

#include <memory>
#include <string>

#include "blocked/micro_kernels.h"
#include "codegen/codegen.h"
#include "ir/graph.h"
#include "ir/trace.h"
#include "runtime/executable.h"

namespace stepc {

// Where the kernels of Graphs come from. Outlives the Graphs that are bound with it.
struct KernelSources {
  explicit KernelSources(std::filesystem::path directory)
      : compiler(host_cpu(), std::move(directory)), micro_kernels(blocked::probe_micro_kernels()) {}
  KernelCompiler compiler;
  blocked::MicroKernels micro_kernels;
};

class GraphExecutable {
 public:
  // `trace` is what `graph` was made of: it says where inputs stand and which numbers host code supplies. Throws
  // UserError for a step that a Graph cannot run: pauses, host code between kernels, generators of the program's own.
  // Groups run as generated kernels; those that it cannot make run as ATen calls, see fallbacks().
  GraphExecutable(const Trace& trace, Graph graph, KernelSources& kernels);
  ~GraphExecutable();
  GraphExecutable(const GraphExecutable&) = delete;
  GraphExecutable& operator=(const GraphExecutable&) = delete;

  // The trace's `call` is given `number` as its argument `arg` in the next run.
  void supply(CallId call, size_t arg, const c10::IValue& number);

  // Runs the step once on the calling thread. The externals are the trace's, as for Executable, and must fit. What a
  // guard needs runs first, then the program's host code that stands after guards (on_event), then the rest.
  // `stopped` of the result says why host code does something else. nullopt: a guard did not hold. Either way nothing
  // was written.
  std::optional<StepResult> run(const RunInputs& inputs);
  // The host has supplied an integer that the Graph has built in as another one: it is not the program's step.
  bool is_unfit() const;

  const Graph& graph() const;
  size_t instructions() const;
  size_t kernels() const;  // generated ones among them
  // Groups that run as ATen calls, and why.
  const std::vector<std::string>& fallbacks() const;

 private:
  struct Impl;
  struct RunValues;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stepc
