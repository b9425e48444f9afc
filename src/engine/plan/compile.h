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
  Target target = {};  // its threads: the intra-op threads of the recording; its features: those of the kernels
  MemoryBudget budget = {};
  Strategy strategy = {};             // fast mode: of one rank's step in its mesh; no mesh: of one device
  std::optional<Fp8Recipe> fp8 = {};  // fast mode: linear layers multiply in float8
  bool device_graphs = false;         // a device runs what it can at one launch
  // Planned instead of the trace, which is then ignored: a function cut out of one rank's step (passes/stages). Must
  // outlive everything that is made from it.
  const Graph* function = nullptr;
  StepMemory memory = {};  // that of the step which the function was cut out of
  // Of a function: what it returns from this one on is made in memory that whoever runs it gives (RunInputs::results);
  // and the tensors of its batch before this one lie elsewhere at every run.
  size_t lasting_results = SIZE_MAX, moving_tensors = SIZE_MAX;
};

// A captured step as a Graph. UserError for what a Graph cannot express, on a device also for calls on the host's
// memory.
Graph captured_graph(const Trace& trace);
// `target` with the features and threads that a step on the device is planned with; on none: as it is.
Target target_on(const std::string& device, Target target, KernelSources& kernels);

// `exact` mode: the recorded calls of the trace, with planned memory.
Schedule plan_exact(const Trace& trace, int threads);
// `fast` mode: the step as a fused Graph with a kernel for every node and planned memory. Does not use the program.
// Throws UserError for a step that a Graph cannot express.
PlannedGraph plan_fast(const Trace& trace, KernelSources& kernels, const CompileOptions& options);

struct Compiled {
  std::unique_ptr<Executor> executor;
  GraphSchedule plan;  // fast mode: facts beside the Schedule, which the executor has
  Graph graph;         // fast mode: the fused Graph from which the Schedule was made
  std::optional<AutoBudget> weighed = {};
  Context context = Context::kGather;  // fast mode: the strategy's, or the chosen one
  double seconds = 0;                  // of planning and binding
};
Compiled compile_exact(const Trace& trace, int threads, bool device_graphs);
// `ranks`: the ranks of the strategy's mesh.
Compiled compile_fast(const Trace& trace, KernelSources& kernels, const CompileOptions& options,
                      const std::shared_ptr<Ranks>& ranks = nullptr);
// The plain Graph: as in `fast` mode, but one ATen call a node. Without a limit nothing is fused and nothing is
// recomputed. On a mesh it is one rank's, with collectives, and its inputs and results are the same parts as those of
// `fused`.
struct PlainLimit {
  uint64_t bytes = 0;  // memory that it may take beside the program's tensors
  const Graph& fused;  // of the plan. If the plain Graph does not fit, the nodes of this one run instead; they hold
                       // little more, because pointwise groups of them run a chunk of the elements at a time
};
// If neither fits, activations are recomputed; if that does not fit either, the one that needs the least memory is
// compiled.
Compiled compile_plain(const Trace& trace, KernelSources& kernels, const CompileOptions& options,
                       const PlainLimit* limit = nullptr, const std::shared_ptr<Ranks>& ranks = nullptr);
// The nodes of `fused` themselves, one ATen call each.
Compiled compile_nodes(const Graph& fused, const Trace& trace, KernelSources& kernels, const CompileOptions& options,
                       const std::shared_ptr<Ranks>& ranks);

}  // namespace stepc
