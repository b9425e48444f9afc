// The compiler, from a recorded step to something that runs. The only place that knows the order of the stages.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/config.h"
#include "ir/trace.h"
#include "runtime/executor.h"
#include "schedule/from_graph.h"

namespace stepc {

struct CompileOptions {
  int threads = 1;  // intra-op, that the step was recorded with
  MemoryBudget budget = {};
};

// `exact` mode: the trace's own calls, memory planned.
Schedule plan_exact(const Trace& trace, int threads);
// `fast` mode: the step as a Graph, fused, with a kernel for everything, memory planned; without the program. Throws
// UserError for a step that a Graph cannot express.
GraphSchedule plan_fast(const Trace& trace, KernelSources& kernels, const CompileOptions& options);

struct Compiled {
  std::unique_ptr<Executor> executor;
  GraphSchedule plan;  // fast mode: what is known beside the Schedule, which the executor has
  double seconds = 0;  // planning and binding
};
Compiled compile_exact(const Trace& trace, int threads);
Compiled compile_fast(const Trace& trace, KernelSources& kernels, const CompileOptions& options);
// The plain Graph: as in `fast` mode, but one ATen call a node. Nothing is fused and nothing computed twice where that
// takes at most `most_bytes` beside the program's tensors; else activations are made again; else the nodes are those of
// the fused Graph, in its order, which holds little more than the plan. None fits: the one that needs least.
Compiled compile_plain(const Trace& trace, KernelSources& kernels, const CompileOptions& options,
                       uint64_t most_bytes = UINT64_MAX);

}  // namespace stepc
