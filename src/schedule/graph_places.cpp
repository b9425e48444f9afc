#include "schedule/graph_places.h"

#include <algorithm>

#include "base/check.h"
#include "ir/alignment.h"
#include "ops/op_def.h"

namespace stepc {

namespace {

// What the program is given, made as it is: its memory is the program's from the start.
void find_own(const GraphKernels& k, std::vector<Place>& places) {
  const auto find = [&](TensorId tensor, const Shape& strides) {
    if (!tensor.valid() || k.is_window(tensor)) return;
    const Node* made = k.graph.producer(tensor);
    if (made == nullptr || is_host_code(*made)) return;
    const Shape wanted = strides.empty() ? contiguous_strides(k.graph.shape(tensor)) : strides;
    if (k.lie.windows[tensor.index()].strides == wanted) places[tensor.index()].kind = Place::Kind::kOwn;
  };
  for (const GraphOutput& output : k.graph.outputs)
    if (output.kind == GraphOutput::Kind::kReturn || output.kind == GraphOutput::Kind::kRebind)
      find(output.tensor, output.strides);
  for (const Node& node : k.graph.nodes)
    if (is_host_code(node))
      for (const HostCode::Given& given : host_code_of(node).given) find(given.tensor, given.strides);
}

bool may_share(const GraphKernels& k, const std::vector<Place>& places, NodeId node, TensorId operand,
               TensorId result) {
  if (places[result.index()].kind == Place::Kind::kOwn) return false;
  const GraphKernels::Unit& unit = k.units.at(node);
  const bool says_pairs =
      unit.choice.kind == KernelChoice::Kind::kGenerated || unit.choice.kind == KernelChoice::Kind::kNodes ||
      unit.choice.kind == KernelChoice::Kind::kMatmul || unit.choice.kind == KernelChoice::Kind::kCollective ||
      unit.choice.kind == KernelChoice::Kind::kWait;
  if (!says_pairs) {
    const Node& alone = k.graph.nodes[node.index()];
    if (k.lie.windows[operand.index()].strides != k.lie.windows[result.index()].strides) return false;
    return alone.aten || op_def(alone.op).has(Trait::kOverwrites);
  }
  const auto write = static_cast<uint32_t>(std::ranges::find(unit.outputs, result) - unit.outputs.begin());
  for (uint32_t read = 0; read < unit.inputs.size(); ++read)
    if (k.lie.roots[unit.inputs[read].index()] == operand &&
        std::ranges::find(unit.choice.in_place, std::pair(read, write)) == unit.choice.in_place.end())
      return false;
  return true;
}

// Of ATen calls: all that is not a new content of what they are given.
bool brings_memory(const GraphKernels& k, NodeId node, TensorId result) {
  if (k.units.at(node).choice.kind != KernelChoice::Kind::kAten) return false;
  const Node& alone = k.graph.nodes[node.index()];
  if (!alone.aten) return !op_def(alone.op).has(Trait::kOverwrites);
  const auto place = static_cast<size_t>(std::ranges::find(alone.outputs, result) - alone.outputs.begin());
  return place < alone.outputs.size() - alone.aten->writes.size();
}

}  // namespace

uint64_t worker_bytes(const GraphKernels::Unit& unit, int threads) {
  return aligned(unit.workspace.worker_bytes) * static_cast<uint64_t>(std::max(threads - 1, 0));
}

GraphPlaces plan_places(const GraphKernels& k, int threads) {
  GraphPlaces m;
  m.places.resize(k.graph.tensors.size());
  find_own(k, m.places);
  m.graph_memory = graph_memory(
      k.graph, {.workspace_bytes =
                    [&](NodeId node) {
                      const auto unit = k.units.find(node);
                      if (unit == k.units.end()) return uint64_t{0};
                      return aligned(unit->second.choice.scratch_bytes) + aligned(unit->second.workspace.bytes) +
                             worker_bytes(unit->second, threads);
                    },
                .may_share = [&](NodeId node, TensorId operand,
                                 TensorId result) { return may_share(k, m.places, node, operand, result); },
                .brings_memory = [&](NodeId node, TensorId result) { return brings_memory(k, node, result); },
                .lies_as =
                    [&](TensorId result, uint32_t input) {
                      if (!k.on_host.empty() && k.on_host[input]) return false;
                      return k.lie.windows[result.index()].strides ==
                             k.lie.windows[k.graph.inputs[input].tensor.index()].strides;
                    },
                .copied_views = k.lie.copied_views});
  const GraphMemory& memory = m.graph_memory;
  OrderProblem problem = memory.problem;
  m.order = program_order(problem);
  for (size_t t = 0; t < m.places.size(); ++t) {
    Place& place = m.places[t];
    const uint32_t value = memory.value_of[t];
    // A value is named after one tensor; others are a group's own views of what lies there.
    if (k.is_window(TensorId(t)) || value == kNone || memory.tensor_of[value] != TensorId(t)) continue;
    const uint32_t input = memory.input_of[value];
    if (place.kind == Place::Kind::kOwn) {
      INTERNAL_CHECK_EQ(input, kNone, "what leaves the step lies in the program's memory");
      problem.values[value].bytes = 0;
      continue;
    }
    place.kind = input == kNone ? Place::Kind::kArena : Place::Kind::kInput;
    place.input = input;
  }
  const OrderIntervals intervals = intervals_of(problem, m.order);
  m.layout = plan_layout(intervals.layout);
  m.live_bytes = lower_bound(intervals.layout);
  const std::vector<uint64_t>& offsets = m.layout.offsets;
  for (size_t v = 0; v < problem.values.size(); ++v)
    if (const uint32_t interval = intervals.interval_of[v]; interval != kNone)
      m.places[memory.tensor_of[v].index()].offset = offsets[interval];
  for (size_t u = 0; u < problem.units.size(); ++u) {
    const uint32_t interval = intervals.workspace_interval_of[u];
    m.scratch.push_back({interval == kNone ? 0 : offsets[interval], problem.units[u].workspace_bytes});
  }
  return m;
}

}  // namespace stepc
