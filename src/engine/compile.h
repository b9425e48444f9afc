// The compiler, from a recorded step to something that runs. The only place that knows the order of the stages.
#pragma once

#include <memory>

#include "engine/config.h"
#include "ir/trace.h"
#include "runtime/executable.h"
#include "runtime/graph_executable.h"

namespace stepc {

struct Compiled {
  std::unique_ptr<Executable> executable;
  double seconds = 0;  // planning and binding
};

// `exact` mode: the trace's own calls, memory planned. `threads` is the intra-op thread count it was recorded with.
Compiled compile_exact(const Trace& trace, int threads);

struct FastOptions {
  int threads = 1;
  MemoryBudget budget;
};
struct CompiledGraph {
  std::unique_ptr<GraphExecutable> executable;
  double seconds = 0;
};
// `fast` mode: the step as a Graph, memory planned. Throws UserError for a step that a Graph cannot express.
CompiledGraph compile_fast(const Trace& trace, KernelSources& kernels, const FastOptions& options);

// The same up to the plan, without the program: for what its memory will be.
GraphPlan plan_fast(const Trace& trace, KernelSources& kernels, const FastOptions& options);

}  // namespace stepc
