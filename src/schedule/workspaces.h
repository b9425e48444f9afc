// The memory that ATen calls take from the allocator beside their results. A recorded call brings its own numbers. For
// any other call the engine runs it alone, once, and measures; a tool that cannot run it uses a rule.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "kernels/tensor_layout.h"

namespace stepc {

struct Workspace {
  uint64_t bytes = 0;         // the most at one time, on the thread that runs the step
  uint64_t worker_bytes = 0;  // the same on each of its intra-op workers
  bool operator==(const Workspace&) const = default;
};

// A call with an unknown workspace: `node` without ids, and the layouts of its operands and results.
struct UnknownWorkspace {
  std::string key;  // the call, its operands' types and layouts, the thread count
  Node node;
  std::vector<TensorLayout> inputs, outputs;
};

using WorkspaceTable = std::map<std::string, Workspace>;  // by key

// nullopt: the workspace was not recorded and does not follow from the op.
std::optional<Workspace> known_workspace(const Node& node, const std::vector<TensorLayout>& inputs);
UnknownWorkspace unknown_workspace(const Node& node, const std::vector<TensorLayout>& inputs,
                                   const std::vector<TensorLayout>& outputs, int threads);
// The rule: as much as operands and results take together, in f32.
Workspace workspace_by_rule(const UnknownWorkspace& call);

// Whether an opaque call's input must be copied before the call: its kernel may rely on the layout that the input had
// in the recording.
bool needs_layout(const AtenCall& call, size_t input, const TensorLayout& layout);

}  // namespace stepc
