#include "passes/fusion/fuse_loops.h"

#include <algorithm>
#include <functional>

#include "base/check.h"
#include "ops/op_def.h"

namespace stepc {

namespace {

constexpr int64_t kMuchSmaller = 16;
using Nodes = FusionGroups::Nodes;

// The elements that the largest loop of the members runs over.
int64_t loop_size(const Graph& graph, const Nodes& members) {
  int64_t most = 0;
  for (size_t member : members) {
    const Node& node = graph.nodes[member];
    most = std::max(most, element_count(graph.shape(node.outputs[0])));
    if (!has(node, Trait::kReduction)) continue;
    for (TensorId input : node.inputs) most = std::max(most, element_count(graph.shape(input)));
  }
  return most;
}

// What is made once for many readers is not made part of one of them.
bool serves_others(const FusionGroups& groups, const Nodes& small, const Nodes& large, const Nodes& both) {
  const Graph& graph = groups.graph();
  if (loop_size(graph, small) * kMuchSmaller > loop_size(graph, large)) return false;
  return std::ranges::any_of(small,
                             [&](size_t member) { return groups.escapes(graph.nodes[member].outputs[0], both); });
}

// Whether in one kernel three tensors or more that nothing else needs would wait until the last of them is made, where
// `group`, without what joins it, would take some up before: sums of what micro-batches or the steps of a recurrence
// give a weight. Not of one tensor each of three modules: what queries, keys and values give their input.
bool many_would_wait(const FusionGroups& groups, const FusionGroup& group, const Nodes& both) {
  const Graph& graph = groups.graph();
  const int64_t size = loop_size(graph, both);
  std::set<TensorId> read;
  for (size_t member : both) read.merge(groups.read_by(member));
  size_t waiting = 0;
  bool is_made_later = false;
  std::set<std::string_view> modules;
  for (TensorId tensor : read) {
    const NodeId producer = graph.tensors[tensor.index()].producer;
    if (!producer.valid() || both.contains(producer.index()) || element_count(graph.shape(tensor)) != size) continue;
    if (groups.escapes(tensor, both)) continue;
    ++waiting;
    is_made_later = is_made_later || groups.slot_of(producer.index()) > group.slot;
    modules.insert(graph.nodes[producer.index()].source.module);
  }
  return is_made_later && (waiting > 3 || (waiting == 3 && modules.size() < 3));
}

// Of one operand, which it gives another type: a cast.
bool changes_type(const Graph& graph, const Node& node) {
  return has(node, Trait::kElementwise) && node.inputs.size() == 1 &&
         graph.type(node.inputs[0]).dtype != graph.type(node.outputs[0]).dtype;
}

// Whether the node ends the sum of an exchange's parts (passes/split_collectives.h): a sum, or its cast to a narrow
// type.
bool ends_sum_of_parts(const Graph& graph, const Node& node) {
  const auto producer = [&](const Node& one) -> const Node* {
    const NodeId made_by = one.inputs.empty() ? NodeId() : graph.tensors[one.inputs[0].index()].producer;
    return made_by.valid() ? &graph.nodes[made_by.index()] : nullptr;
  };
  const Node* sum = changes_type(graph, node) ? producer(node) : &node;
  if (sum == nullptr || !has(*sum, Trait::kReduction)) return false;
  const Node* parts = producer(*sum);
  if (parts != nullptr && changes_type(graph, *parts)) parts = producer(*parts);
  return parts != nullptr && collective_of(*parts) == Collective::kWait;
}

// Groups that `node` could join: those that make what it reads, then those that read the same; the latest first.
std::vector<size_t> candidates(const FusionGroups& groups, size_t node) {
  const Graph& graph = groups.graph();
  std::vector<size_t> found;
  // An exchange that blocks adds its parts up by itself: its readers have the same bits here if no kernel takes the sum
  // in.
  const auto takes_sum_in = [&](size_t other) {
    return ends_sum_of_parts(graph, graph.nodes[other]) && !ends_sum_of_parts(graph, graph.nodes[node]);
  };
  const auto add = [&](size_t other) {
    const std::optional<size_t> group = groups.group_of(other);
    if (!group || graph.nodes[other].source.phase != graph.nodes[node].source.phase) return;
    if (std::ranges::find(found, *group) == found.end()) found.push_back(*group);
  };
  const std::set<TensorId> tensors = groups.read_by(node);
  for (TensorId tensor : tensors)
    if (const NodeId producer = graph.tensors[tensor.index()].producer;
        producer.valid() && !takes_sum_in(producer.index()))
      add(producer.index());
  std::ranges::sort(found, std::greater<>());
  std::vector<size_t> makers = std::move(found);
  found.clear();
  const int64_t size = loop_size(graph, {node});
  for (TensorId tensor : tensors) {
    if (element_count(graph.shape(tensor)) != size || size == 1) continue;
    Nodes readers;
    groups.add_readers(tensor, readers);
    for (size_t reader : readers)
      if (reader < node && node - reader <= FusionGroups::kNearby && groups.role(reader) == Role::kWork &&
          loop_size(graph, {reader}) == size)
        add(reader);
  }
  std::ranges::sort(found, std::greater<>());
  for (size_t group : found)
    if (std::ranges::find(makers, group) == makers.end()) makers.push_back(group);
  return makers;
}

bool can_be_kernel(const FusionGroups& groups, const Nodes& members) {
  return groups.are_plain(members) || groups.is_kernel(members);
}

void place(FusionGroups& groups, size_t node) {
  Nodes members = {node};
  if (!can_be_kernel(groups, members)) return groups.keep_outside(node);
  double slot = static_cast<double>(node);
  std::vector<size_t> joined;
  for (size_t group : candidates(groups, node)) {
    const std::vector<size_t>& nodes = groups.groups()[group].nodes;
    const Nodes other(nodes.begin(), nodes.end());
    Nodes both = members;
    both.insert(other.begin(), other.end());
    if (serves_others(groups, other, members, both)) continue;
    const std::optional<double> now = groups.find_slot(both, slot);
    if (!now || !can_be_kernel(groups, both) || many_would_wait(groups, groups.groups()[group], both)) continue;
    members = std::move(both);
    slot = *now;
    joined.push_back(group);
  }
  const size_t home = joined.empty() ? groups.add() : joined[0];
  for (size_t group : joined) groups.clear(group);
  groups.set(home, {{members.begin(), members.end()}, slot});
}

// Each set of the members that make numbers, or of the others, that such tensors connect.
std::vector<Nodes> connected_parts(const FusionGroups& groups, const Nodes& members, bool of_numbers) {
  const Graph& graph = groups.graph();
  std::vector<Nodes> out;
  std::vector<std::pair<Nodes, std::set<TensorId>>> parts;
  for (size_t member : members) {
    const TensorId made = graph.nodes[member].outputs[0];
    if (graph.shape(made).empty() != of_numbers) continue;
    std::set<TensorId> tensors = groups.read_by(member);
    std::erase_if(tensors, [&](TensorId tensor) { return graph.shape(tensor).empty() != of_numbers; });
    tensors.insert(made);
    Nodes part = {member};
    std::erase_if(parts, [&](const auto& other) {
      if (std::ranges::none_of(tensors, [&](TensorId tensor) { return other.second.contains(tensor); })) return false;
      part.insert(other.first.begin(), other.first.end());
      tensors.insert(other.second.begin(), other.second.end());
      return true;
    });
    parts.emplace_back(std::move(part), std::move(tensors));
  }
  for (auto& [part, tensors] : parts) out.push_back(std::move(part));
  return out;
}

// Plain members are a kernel as soon as all of them are connected, which is seen when all are there: those that only
// numbers connect have no loops in common. The numbers stay, but what only those others connected; the others stand
// behind them.
void cut_unconnected(FusionGroups& groups, size_t group) {
  const FusionGroup whole = groups.groups()[group];
  const Nodes members(whole.nodes.begin(), whole.nodes.end());
  if (!groups.are_plain(members)) return;
  const std::vector<Nodes> others = connected_parts(groups, members, false);
  if (others.size() < 2) return;
  std::vector<Nodes> numbers = connected_parts(groups, members, true);
  Nodes all_numbers;
  for (const Nodes& part : numbers) all_numbers.insert(part.begin(), part.end());
  if (numbers.size() > 1 && groups.is_kernel(all_numbers)) numbers = {all_numbers};  // constants connect them too
  const Nodes first = numbers.empty() ? Nodes() : numbers[0];
  groups.set(group, {{first.begin(), first.end()}, whole.slot});
  const auto add = [&](const Nodes& part) {
    const std::optional<double> slot = groups.find_slot(part, whole.slot);
    INTERNAL_CHECK(slot.has_value(), "no room beside group {}", group);
    groups.set(groups.add(), {{part.begin(), part.end()}, *slot});
  };
  for (size_t i = 1; i < numbers.size(); ++i) add(numbers[i]);
  for (const Nodes& part : others) add(part);
}

}  // namespace

void fuse_loops(FusionGroups& groups) {
  for (size_t n = 0; n < groups.graph().nodes.size(); ++n)
    if (groups.role(n) == Role::kWork) place(groups, n);
  for (size_t group = 0, count = groups.groups().size(); group < count; ++group) cut_unconnected(groups, group);
}

}  // namespace stepc
