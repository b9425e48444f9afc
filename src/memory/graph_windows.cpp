#include "memory/graph_windows.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "memory/channels_last.h"
#include "ops/op_def.h"

namespace stepc {

namespace {

// By tensor: whether it is a view, opaque calls want it contiguous, and nothing else reads what it is a view of, which
// a copy therefore takes the place of.
std::vector<bool> copied_for_calls(const Graph& graph) {
  std::vector<bool> wanted = wanted_contiguous(graph);
  if (std::ranges::find(wanted, true) == wanted.end()) return wanted;
  std::vector<size_t> readers(graph.tensors.size(), 0);
  for (const Node& node : graph.nodes)
    for (TensorId input : node.inputs) ++readers[input.index()];
  for (const GraphOutput& output : graph.outputs)
    if (output.tensor.valid()) ++readers[output.tensor.index()];
  for (size_t t = 0; t < wanted.size(); ++t) {
    const Node* producer = graph.producer(TensorId(t));
    wanted[t] = wanted[t] && producer != nullptr && is_view(*producer);
    while (wanted[t] && producer != nullptr && is_view(*producer)) {
      const TensorId from = producer->inputs[0];
      producer = graph.producer(from);
      wanted[t] = producer != nullptr && readers[from.index()] == 1;
    }
  }
  return wanted;
}

// By tensor: whether an exchange sends it that goes on beside other work. Ranks send contiguous memory, and the scratch
// memory of an exchange, where its copy would lie, is others' by then.
std::vector<bool> sent_beside_others(const Graph& graph) {
  std::vector<bool> sent(graph.tensors.size(), false);
  for (const Node& node : graph.nodes)
    if (collective_of(node) == Collective::kWait)
      for (size_t i = node.outputs.size(); i < node.inputs.size(); ++i) sent[node.inputs[i].index()] = true;
  return sent;
}

}  // namespace

GraphWindows graph_windows(const Graph& graph) {
  GraphWindows w;
  w.windows.assign(graph.tensors.size(), {});
  w.copied_views.assign(graph.nodes.size(), false);
  for (size_t t = 0; t < graph.tensors.size(); ++t) w.roots.emplace_back(t);
  for (const GraphInput& input : graph.inputs) {
    const Shape& sizes = graph.shape(input.tensor);
    w.windows[input.tensor.index()] = {sizes, input.strides.empty() ? contiguous_strides(sizes) : input.strides, 0};
  }
  const auto strides_of = [&](TensorId tensor) -> const Shape& { return w.windows[tensor.index()].strides; };
  const std::vector<bool> wanted = wanted_channels_last(graph);
  const std::vector<bool> wanted_by_calls = copied_for_calls(graph), sent = sent_beside_others(graph);
  Shape group_strides;      // of the group that `node` is of
  bool writes_any = false;  // layout of results, as they are wanted
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.group && (n == 0 || graph.nodes[n - 1].group != node.group)) {
      size_t end = n + 1;
      while (end < graph.nodes.size() && graph.nodes[end].group == node.group) ++end;
      group_strides = channels_last_group(graph, std::span(graph.nodes).subspan(n, end - n), strides_of);
      if (!group_strides.empty()) w.channels_last.insert(*node.group);
      writes_any = std::none_of(graph.nodes.begin() + n, graph.nodes.begin() + end,
                                [](const Node& one) { return has(one, Trait::kContraction); });
    }
    if (!node.group && is_view(node)) {
      const TensorId from = node.inputs[0];
      auto window = window_of(node, graph.type(from).dtype, w.windows[from.index()]);
      const size_t to = node.outputs[0].index();
      const bool is_copied = window && (wanted_by_calls[to] || sent[to]) && !is_dense(window->sizes, window->strides);
      if (window && !is_copied) {
        w.windows[to] = std::move(*window);
        w.roots[to] = w.roots[from.index()];
        continue;
      }
      w.copied_views[n] = true;
    }
    for (TensorId output : node.outputs) {
      const bool is_so = node.group && !group_strides.empty() && !graph.shape(output).empty();
      const bool is_wanted = node.group && group_strides.empty() && writes_any && wanted[output.index()];
      w.windows[output.index()] = {graph.shape(output),
                                   is_so       ? group_strides
                                   : is_wanted ? channels_last_strides(graph.shape(output))
                                               : result_strides(node, graph.type(output)),
                                   0};
    }
    if (node.aten)
      for (const auto& [output, strides] : node.aten->result_layouts)
        w.windows[node.outputs[output].index()].strides = strides;
    if (is_host_code(node))
      for (const HostCode::Slot& slot : host_code_of(node).slots)
        w.windows[slot.after.index()] = w.windows[graph.inputs[slot.input].tensor.index()];
  }
  return w;
}

}  // namespace stepc
