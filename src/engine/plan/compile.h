// The compiler, from a recorded step to something that runs, stage after stage. plan/plan_graph.h has a Graph's own
// stages.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/config.h"
#include "ir/trace.h"
#include "plan/plan_graph.h"
#include "runtime/executor.h"
#include "schedule/from_graph.h"

namespace stepc {

struct CompileOptions {
  Target target = {};  // its threads: intra-op, that the step was recorded with; its features are those of the kernels
  MemoryBudget budget = {};
  Strategy strategy = {};  // fast mode: the step of one rank of its mesh; no mesh: of one device
  // Planned in the stead of a trace, which nobody looks at: a function that was cut of one rank's step
  // (passes/stages). Outlives what is made with it.
  const Graph* function = nullptr;
};

// `exact` mode: the trace's own calls, memory planned.
Schedule plan_exact(const Trace& trace, int threads);
// `fast` mode: the step as a Graph, fused, with a kernel for everything, memory planned; without the program. Throws
// UserError for a step that a Graph cannot express.
PlannedGraph plan_fast(const Trace& trace, KernelSources& kernels, const CompileOptions& options);

// The step of one rank of the strategy's mesh as core ops, before anything is decided about its memory: what is cut
// into functions.
Graph rank_graph(const Trace& trace, const CompileOptions& options);

struct Compiled {
  std::unique_ptr<Executor> executor;
  GraphSchedule plan;  // fast mode: what is known beside the Schedule, which the executor has
  Graph graph;         // fast mode: fused, that the Schedule was made of
  std::optional<AutoBudget> weighed = {};
  Context context = Context::kGather;  // fast mode: of the strategy, or what was chosen
  double seconds = 0;                  // planning and binding
};
Compiled compile_exact(const Trace& trace, int threads, bool device_graphs);
// `ranks`: those of the strategy's mesh.
Compiled compile_fast(const Trace& trace, KernelSources& kernels, const CompileOptions& options,
                      const std::shared_ptr<Ranks>& ranks = nullptr);
// The plain Graph: as in `fast` mode, but one ATen call a node. Without a limit nothing is fused and nothing computed
// twice. Of a mesh it is one rank's, with collectives, and its inputs and results are parts as those of `fused` are.
struct PlainLimit {
  uint64_t bytes = 0;  // that it may take beside the program's tensors
  const Graph& fused;  // of the plan: where the plain Graph does not fit, the nodes are these, which hold little more,
                       // for pointwise groups of them run a stretch of the elements at a time
};
// Where neither fits, activations are recomputed; of what does not fit even so, the one that needs least.
Compiled compile_plain(const Trace& trace, KernelSources& kernels, const CompileOptions& options,
                       const PlainLimit* limit = nullptr, const std::shared_ptr<Ranks>& ranks = nullptr);
// The nodes of `fused` themselves, one ATen call each.
Compiled compile_nodes(const Graph& fused, const Trace& trace, KernelSources& kernels, const CompileOptions& options,
                       const std::shared_ptr<Ranks>& ranks);

}  // namespace stepc
