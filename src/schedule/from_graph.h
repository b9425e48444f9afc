// From a fused Graph to its Schedule: a kernel for every node and group, a place for every tensor, and the order of
// guards, host code, kernels and copies. Views become windows, tensors that need no memory get none, and updates are
// written to their inputs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cost/features.h"
#include "ir/graph.h"
#include "ir/trace.h"
#include "memory/report.h"
#include "schedule/schedule.h"
#include "schedule/workspaces.h"

namespace stepc {

// Where a step's tensors lie.
struct StepMemory {
  std::string device = {};                                   // empty: in the host's memory, all of them
  std::set<std::pair<InputKind, std::string>> on_host = {};  // of the program's tensors, those that lie there beside it
};
StepMemory memory_of(const Trace& trace);

struct GraphScheduleOptions {
  Features features = {};
  int threads = 1;
  // The recorded step of the Graph: the layouts of the program's tensors, and its host code. None: inputs have the
  // Graph's layouts, and there is no host code.
  const Trace* trace = nullptr;
  StepMemory memory = {};  // without a trace: that of the step whose function the Graph is
  WorkspaceTable workspaces = {};
  // Groups without generated code, and the reason; UINT32_MAX: those kernels that nodes alone have.
  std::map<uint32_t, std::string> refused = {};
  uint64_t most_scratch_bytes = UINT64_MAX;  // of a blocked matmul; the library computes one that needs more
  // The loops of a group for the device that the trace's tensors lie on, in place of those for any machine: its
  // generated kernels allow other pairs of buffers to be one piece of memory. None: that device is not here, and what a
  // kernel of its takes is estimated.
  std::function<LoopProgram(const Graph& group)> lower = {};
  bool is_plain = false;  // one ATen call a node; pointwise groups a chunk of the elements at a time
};

// The device that the step works on; empty: none. All memory of its Graph is that device's, and what the step has of
// the host's is copied.
std::string device_of(const GraphScheduleOptions& options);

struct GraphSchedule {
  Schedule schedule;
  MemoryReport memory;
  size_t nodes = 0;                       // of the Graph
  DType narrowest = DType::kF32;          // floating-point type that some node computes in
  std::vector<UnknownWorkspace> unknown;  // estimated by the rule
  std::vector<uint32_t> group_of;         // by instruction: the group of the Graph; UINT32_MAX: none
  std::vector<NodeId> node_of;            // by instruction: the first node that it runs; invalid: none
  std::vector<OperandId> operand_of;      // by tensor of the Graph; invalid: it is not in memory
  std::vector<std::string> opaque;        // ATen calls without an op and without a rule, each name once
  std::vector<std::string> one_by_one;    // groups whose nodes run one by one, and the reason
};

// Throws UserError for what a Graph's Schedule cannot run: a read of memory that host code has changed, and a restored
// generator state for draws by ATen's own kernels.
GraphSchedule schedule_graph(Graph graph, const GraphScheduleOptions& options);

}  // namespace stepc
