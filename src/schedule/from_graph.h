// From a fused Graph to its Schedule: a kernel for every node and group, a place for every tensor, and the order in
// which guards, host code, kernels and copies run. Views become windows, what nobody needs in memory has none, updates
// are written where they belong.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cost/features.h"
#include "ir/graph.h"
#include "ir/trace.h"
#include "memory/report.h"
#include "schedule/schedule.h"
#include "schedule/workspaces.h"

namespace stepc {

struct GraphScheduleOptions {
  Features features = {};
  int threads = 1;
  // What the Graph was made of: how the program's tensors look, which host code stands between. None: inputs look as
  // the Graph says, and there is no host code.
  const Trace* trace = nullptr;
  WorkspaceTable workspaces = {};
  std::map<uint32_t, std::string> refused = {};  // groups that no code could be generated for, and why
  uint64_t most_scratch_bytes = UINT64_MAX;      // of a blocked matmul; the library makes one that wants more
  bool is_plain = false;  // one ATen call a node; pointwise groups a stretch of the elements at a time
};

struct GraphSchedule {
  Schedule schedule;
  MemoryReport memory;
  size_t nodes = 0;                       // of the Graph
  bool narrow = false;                    // it computes, somewhere, in bf16 or f16
  std::vector<UnknownWorkspace> unknown;  // for which the rule stands in
  std::vector<uint32_t> group_of;         // by instruction: the Graph's group, UINT32_MAX: none
  std::vector<NodeId> node_of;            // by instruction: the first node of what it runs; invalid: none
  std::vector<OperandId> operand_of;      // by tensor of the Graph; invalid: it has no place in memory
  std::vector<std::string> opaque;      // ATen calls that no op expresses and of which no rule says anything, each once
  std::vector<std::string> one_by_one;  // groups whose nodes run one by one, and why
};

// Throws UserError for what a Graph's Schedule cannot run: what is read after host code has changed it, a generator's
// state that is put back for draws by ATen's own.
GraphSchedule schedule_graph(Graph graph, const GraphScheduleOptions& options);

}  // namespace stepc
