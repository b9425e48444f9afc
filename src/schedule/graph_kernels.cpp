#include "schedule/graph_kernels.h"

#include <algorithm>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "loops/group_key.h"
#include "memory/channels_last.h"
#include "ops/op_def.h"

namespace stepc {

namespace {

// Whether a matmul wants more scratch memory than there is for it: the library makes it then, one call a node.
bool wants_too_much(const KernelChoice& choice, const GraphScheduleOptions& options) {
  return choice.kind == KernelChoice::Kind::kMatmul && choice.scratch_bytes > options.most_scratch_bytes;
}

using ChoiceOf = std::unordered_map<std::string, KernelChoice>;  // by group_key()

const KernelChoice& choice_of(const Graph& group, const GraphScheduleOptions& options, ChoiceOf& known) {
  const auto [found, is_new] = known.try_emplace(group_key(group));
  if (!is_new) return found->second;
  found->second = choose_kernel(group, options.features, options.threads);
  if (options.lower && found->second.kind == KernelChoice::Kind::kGenerated)
    use_loops(found->second, group, options.lower(group));
  return found->second;
}

// What generated kernels of a GPU want of where a tensor begins, in bytes.
constexpr int64_t kAlignment = 16;

// Of a tensor in memory that itself begins at such a place.
bool begins_aligned(const GraphKernels& k, TensorId tensor) {
  const TensorId root = k.lie.roots[tensor.index()];
  int64_t begin = k.lie.windows[tensor.index()].offset;
  if (root == tensor) begin = 0;
  const auto input = std::ranges::find(k.graph.inputs, root, &GraphInput::tensor);
  if (input != k.graph.inputs.end()) begin += input->offset;
  return begin * size_of(k.graph.type(tensor).dtype) % kAlignment == 0;
}

// The group reads what does not begin so as contiguous copies.
std::vector<uint32_t> copied_inputs(const GraphKernels& k, const std::vector<TensorId>& inputs) {
  std::vector<uint32_t> copied;
  for (uint32_t i = 0; i < inputs.size(); ++i)
    if (!begins_aligned(k, inputs[i])) copied.push_back(i);
  return copied;
}

// The groups with what runs them. Of one that nothing runs whole, the nodes leave it; then all is to be looked at anew.
bool choose_for_groups(GraphKernels& k, const GraphScheduleOptions& options, ChoiceOf& known,
                       std::vector<std::string>& one_by_one) {
  std::vector<GroupGraph> groups = extract_groups(k.graph);
  std::set<uint32_t> dissolved;
  size_t next = 0;
  for (size_t n = 0; n < k.graph.nodes.size(); ++n) {
    const Node& node = k.graph.nodes[n];
    if (!node.group || (n > 0 && k.graph.nodes[n - 1].group == node.group)) continue;
    GroupGraph& group = groups[next++];
    for (size_t i = 0; i < group.inputs.size(); ++i)
      if (const TensorLayout from = k.layout(group.inputs[i]); !is_contiguous(from))
        group.graph.inputs[i].strides = from.strides;
    const bool is_channels_last = k.lie.channels_last.contains(*node.group);
    for (size_t o = 0; o < group.outputs.size(); ++o)
      if (const TensorLayout to = k.layout(group.outputs[o]); !is_contiguous(to))
        group.graph.outputs[o].strides = to.strides;
    if (is_channels_last) group.graph = flattened(std::move(group.graph));
    const std::vector<uint32_t> copied = options.lower ? copied_inputs(k, group.inputs) : std::vector<uint32_t>();
    if (!is_channels_last)
      for (uint32_t input : copied) group.graph.inputs[input].strides.clear();
    GraphKernels::Unit& unit = k.units[NodeId(n)];
    unit.inputs = group.inputs;
    unit.outputs = group.outputs;
    unit.group = *node.group;
    const auto refused = options.refused.find(*node.group);
    if (options.is_plain)
      unit.choice = choose_node_calls(group.graph);
    else if (refused == options.refused.end())
      unit.choice = choice_of(group.graph, options, known);
    if (unit.choice.kind == KernelChoice::Kind::kGenerated)
      for (uint32_t input : copied) copy_first(unit.choice, input, k.layout(group.inputs[input]));
    if (is_channels_last) unit.choice.why += ", over channels-last tensors as they lie";
    const bool too_much = wants_too_much(unit.choice, options);
    const bool runs = unit.choice.kind != KernelChoice::Kind::kNone && !too_much;
    if (runs && refused == options.refused.end()) continue;
    if (group.outputs.empty()) continue;  // nothing needs it
    dissolved.insert(*node.group);
    const std::string& why = refused == options.refused.end() ? unit.choice.why : refused->second;
    if (!too_much && (refused != options.refused.end() || !is_matmul_group(group.graph) || has_epilogue(group.graph)))
      one_by_one.push_back(str("group {} ({}): {}", *node.group, node.op, why));
  }
  for (Node& node : k.graph.nodes)
    if (node.group && dissolved.contains(*node.group)) node.group.reset();
  return dissolved.empty();
}

// Of a ChunkedLoss: ATen's calls where no kernel is to be generated; on a device, copies of what begins anywhere.
void finish_loss(const GraphKernels& k, GraphKernels::Unit& unit, const Node& node, const GraphScheduleOptions& options,
                 std::vector<std::string>& one_by_one) {
  const auto refused = options.refused.find(kNoGroup);
  if (options.is_plain || refused != options.refused.end()) {
    unit.choice = {};
    unit.choice.why = options.is_plain ? "the plain Graph has no kernels" : refused->second;
    if (!options.is_plain) one_by_one.push_back(str("{}: {}", node.op, unit.choice.why));
    return;
  }
  if (!options.lower) return;
  std::vector<uint32_t>& copied = unit.choice.copied;
  for (uint32_t input = 2; input < unit.inputs.size(); ++input)  // by token
    if (!begins_aligned(k, unit.inputs[input]) && std::ranges::find(copied, input) == copied.end())
      copy_first(unit.choice, input, k.layout(unit.inputs[input]));
}

std::vector<bool> inputs_on_host(const Graph& graph, const StepMemory& memory) {
  std::vector<bool> on_host;
  for (const GraphInput& input : graph.inputs) on_host.push_back(memory.on_host.contains({input.kind, input.key}));
  return on_host;
}

}  // namespace

GraphKernels choose_kernels(Graph graph, const GraphScheduleOptions& options, GraphSchedule& out) {
  GraphKernels k;
  k.graph = std::move(graph);
  if (options.is_plain)
    for (Node& node : k.graph.nodes)
      if (has(node, Trait::kContraction)) node.group.reset();  // what finishes it is a group without it
  if (!device_of(options).empty())
    k.on_host = inputs_on_host(k.graph, options.trace == nullptr ? options.memory : memory_of(*options.trace));
  ChoiceOf known;
  do {
    k.units.clear();
    k.lie = graph_windows(k.graph);
  } while (!choose_for_groups(k, options, known, out.one_by_one));
  for (size_t n = 0; n < k.graph.nodes.size(); ++n) {
    const Node& node = k.graph.nodes[n];
    if (node.group || (is_view(node) && !k.lie.copied_views[n])) continue;
    GraphKernels::Unit& unit = k.units[NodeId(n)];
    unit.inputs = node.inputs;
    unit.outputs = node.outputs;
    if (is_host_code(node)) continue;
    const std::vector<TensorLayout> layouts = k.layouts(node.inputs);
    unit.choice = choose_kernel(node, layouts, options.features, options.threads, options.lower);
    if (wants_too_much(unit.choice, options)) {
      unit.choice = {};
      unit.choice.why = "the blocked kernel's scratch memory would lift the step above what it may take";
    }
    if (unit.choice.loss) finish_loss(k, unit, node, options, out.one_by_one);
    const bool is_there = options.lower != nullptr;  // the device, which knows better
    if (unit.choice.workspace_bytes && !is_there) {
      unit.workspace.bytes = *unit.choice.workspace_bytes;
      continue;
    }
    if (unit.choice.kind != KernelChoice::Kind::kAten) continue;
    if (const auto known = known_workspace(node, layouts)) {
      unit.workspace = *known;
      continue;
    }
    UnknownWorkspace call = unknown_workspace(node, layouts, k.layouts(node.outputs), options.threads);
    const auto found = options.workspaces.find(call.key);
    unit.workspace = found == options.workspaces.end() ? workspace_by_rule(call) : found->second;
    if (found == options.workspaces.end()) out.unknown.push_back(std::move(call));
  }
  return k;
}

}  // namespace stepc
