#include "passes/fusion/fusion_groups.h"

#include <algorithm>

#include "base/check.h"
#include "loops/group_key.h"
#include "loops/lower/lower.h"
#include "loops/lower/moved_index.h"
#include "ops/op_def.h"
#include "ops/unconnected_parts.h"

namespace stepc {

namespace {

constexpr size_t kMostNodes = 200;
constexpr size_t kMostTensors = 48;  // read and written by a kernel
constexpr size_t kMostPieces = 8;    // operands of a concat inside a kernel

Role role_of(const Graph& graph, const Node& node) {
  if (node.aten || node.outputs.size() != 1) return Role::kOutside;
  const OpDef& op = op_def(node.op);
  if (op.has(Trait::kComposite)) return Role::kOutside;
  const bool moves = moves_elements(node.op) && node.inputs.size() <= kMostPieces;
  if (op.has(Trait::kView)) return moves ? Role::kFree : Role::kOutside;
  if (op.has(Trait::kConstant)) {
    const bool is_computed = op.has(Trait::kShapeAttr) || element_count(graph.shape(node.outputs[0])) == 1;
    return is_computed ? Role::kFree : Role::kOutside;
  }
  constexpr Trait kWork[] = {Trait::kElementwise, Trait::kReduction, Trait::kRandom, Trait::kSelects};
  const bool works = std::ranges::any_of(kWork, [&](Trait trait) { return op.has(trait); });
  return works || moves ? Role::kWork : Role::kOutside;
}

// Of the elementwise ops of one operand only casts make another floating-point type.
bool is_widening(const Graph& graph, const Node& node) {
  if (!has(node, Trait::kElementwise) || node.inputs.size() != 1) return false;
  const DType from = graph.type(node.inputs[0]).dtype;
  const DType to = graph.type(node.outputs[0]).dtype;
  return is_floating(from) && is_floating(to) && size_of(from) < size_of(to);
}

// Whether an input holds the same numbers in every step of a run, as far as one can tell.
bool is_table(InputKind kind) { return kind == InputKind::kBuffer || kind == InputKind::kCaptured; }

// Nodes that make f32 numbers of integers and tables alone (the frequencies and angles of a rotation), of which f64
// numbers are made. A kernel's own elementary functions are right to the last bits of f32, as LibTorch's are, but in
// other bits: what is f64 elsewhere would differ from eager's from the eighth digit on.
std::vector<bool> f32_tables_of_f64(const Graph& graph) {
  std::vector<bool> known(graph.tensors.size(), false);  // made of integers and tables alone; or integers themselves
  for (size_t t = 0; t < graph.tensors.size(); ++t) known[t] = !is_floating(graph.tensors[t].type.dtype);
  for (const GraphInput& input : graph.inputs)
    if (is_table(input.kind)) known[input.tensor.index()] = true;
  const auto is_known = [&](TensorId tensor) { return known[tensor.index()]; };
  for (const Node& node : graph.nodes) {
    if (node.aten || find_op(node.op) == nullptr || has(node, Trait::kRandom)) continue;
    if (std::ranges::all_of(node.inputs, is_known))
      for (TensorId made : node.outputs) known[made.index()] = true;
  }
  std::vector<bool> wanted(graph.tensors.size(), false), found(graph.nodes.size(), false);
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    if (node.outputs.size() != 1) continue;
    const TensorId made = node.outputs[0];
    const DType dtype = graph.type(made).dtype;
    found[n] = dtype == DType::kF32 && known[made.index()] && wanted[made.index()];
    if (dtype != DType::kF64 && !found[n]) continue;
    for (TensorId input : node.inputs)
      if (graph.type(input).dtype == DType::kF32 && is_known(input)) wanted[input.index()] = true;
  }
  return found;
}

}  // namespace

FusionGroups::FusionGroups(const Graph& graph, KnownGroups& known)
    : graph_(graph),
      known_(known),
      users_(graph.tensors.size()),
      returned_(graph.tensors.size(), false),
      group_of_(graph.nodes.size()) {
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    for (TensorId input : graph.nodes[n].inputs) users_[input.index()].push_back(n);
  for (const GraphOutput& output : graph.outputs)
    if (output.tensor.valid()) returned_[output.tensor.index()] = true;
  find_changes();
  assign_roles();
}

void FusionGroups::find_changes() {
  std::map<uint32_t, TensorId> holds;  // by input, after host code
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    if (!is_host_code(graph_.nodes[n])) continue;
    for (const HostCode::Slot& slot : host_code_of(graph_.nodes[n]).slots) {
      const auto [held, is_first] = holds.emplace(slot.input, graph_.inputs[slot.input].tensor);
      changed_at_[held->second] = n;
      held->second = slot.after;
    }
  }
}

void FusionGroups::assign_roles() {
  for (const Node& node : graph_.nodes) roles_.push_back(role_of(graph_, node));
  const std::vector<bool> by_call = f32_tables_of_f64(graph_);
  for (size_t n = 0; n < by_call.size(); ++n)
    if (by_call[n] && roles_[n] == Role::kWork) roles_[n] = Role::kOutside;
  // A cast to a wider type is cheaper recomputed by each reader than written and read.
  for (size_t n = graph_.nodes.size(); n-- > 0;)
    if (roles_[n] == Role::kWork && is_widening(graph_, graph_.nodes[n]) && only_work_reads(graph_.nodes[n].outputs[0]))
      roles_[n] = Role::kFree;
}
bool FusionGroups::only_work_reads(TensorId tensor) const {
  if (returned_[tensor.index()] || users_[tensor.index()].empty()) return false;
  return std::ranges::all_of(users_[tensor.index()], [&](size_t user) {
    if (roles_[user] == Role::kFree) return only_work_reads(graph_.nodes[user].outputs[0]);
    return roles_[user] == Role::kWork;
  });
}

size_t FusionGroups::add() {
  groups_.emplace_back();
  return groups_.size() - 1;
}
void FusionGroups::set(size_t group, FusionGroup nodes) {
  for (size_t member : nodes.nodes) {
    roles_[member] = Role::kWork;
    group_of_[member] = group;
  }
  groups_[group] = std::move(nodes);
}

// ---- what a node reads and who reads it, through what is free

std::set<TensorId> FusionGroups::read_by(size_t node) const {
  std::set<TensorId> tensors;
  for (TensorId input : graph_.nodes[node].inputs) add_sources(input, tensors);
  return tensors;
}
void FusionGroups::add_sources(TensorId tensor, std::set<TensorId>& tensors) const {
  const NodeId producer = graph_.tensors[tensor.index()].producer;
  if (!producer.valid() || roles_[producer.index()] != Role::kFree) {
    tensors.insert(tensor);
    return;
  }
  for (TensorId input : graph_.nodes[producer.index()].inputs) add_sources(input, tensors);
}
bool FusionGroups::add_readers(TensorId tensor, Nodes& readers) const {
  bool returned = returned_[tensor.index()];
  for (size_t user : users_[tensor.index()]) {
    if (roles_[user] == Role::kFree)
      returned = add_readers(graph_.nodes[user].outputs[0], readers) || returned;
    else
      readers.insert(user);
  }
  return returned;
}
bool FusionGroups::escapes(TensorId tensor, const Nodes& members) const {
  return returned_[tensor.index()] || std::ranges::any_of(users_[tensor.index()], [&](size_t user) {
           return roles_[user] == Role::kFree ? escapes(graph_.nodes[user].outputs[0], members)
                                              : !members.contains(user);
         });
}
double FusionGroups::slot_of(size_t node) const {
  return group_of_[node] ? groups_[*group_of_[node]].slot : static_cast<double>(node);
}

// ---- a set of nodes as one kernel or call

std::vector<size_t> FusionGroups::in_order(const Nodes& members) const {
  std::vector<size_t> nodes(members.begin(), members.end());
  std::stable_partition(nodes.begin(), nodes.end(),
                        [this](size_t node) { return has(graph_.nodes[node], Trait::kContraction); });
  return nodes;
}

class FusionGroups::GraphOfGroup {
 public:
  GraphOfGroup(const FusionGroups& all, const Nodes& members) : all_(all), members_(members) {}

  Graph build() {
    const std::vector<size_t> nodes = all_.in_order(members_);
    for (size_t member : nodes) add(member);
    for (size_t member : nodes) {
      const TensorId made = all_.graph_.nodes[member].outputs[0];
      if (!all_.escapes(made, members_)) continue;
      group_.outputs.emplace_back();
      group_.outputs.back().tensor = inside_.at(made);
    }
    return std::move(group_);
  }

 private:
  TensorId inside(TensorId tensor) {
    if (const auto found = inside_.find(tensor); found != inside_.end()) return found->second;
    const NodeId producer = all_.graph_.tensors[tensor.index()].producer;
    if (producer.valid() && all_.roles_[producer.index()] == Role::kFree) {
      add(producer.index());
      return inside_.at(tensor);
    }
    return from_outside(tensor);
  }
  TensorId from_outside(TensorId tensor) {
    const TensorId input =
        group_.add_input({InputKind::kCaptured, str("{}", group_.inputs.size()), {}, {}, 0}, all_.graph_.type(tensor));
    inside_[tensor] = input;
    return input;
  }
  void add(size_t place) {
    Node node = all_.graph_.nodes[place];
    const TensorId made = node.outputs[0];
    const bool is_contraction = has(node, Trait::kContraction);  // reads what lies in memory
    for (TensorId& input : node.inputs) input = is_contraction ? from_outside(input) : inside(input);
    const NodeId id = group_.add_node(std::move(node), {all_.graph_.type(made)});
    inside_[made] = group_.nodes[id.index()].outputs[0];
  }

  const FusionGroups& all_;
  const Nodes& members_;
  Graph group_;
  std::map<TensorId, TensorId> inside_;
};

std::optional<Graph> FusionGroups::as_graph(const Nodes& members) const {
  if (members.size() > kMostNodes) return std::nullopt;
  Graph group = GraphOfGroup(*this, members).build();
  if (group.inputs.size() + group.outputs.size() > kMostTensors) return std::nullopt;
  return group;
}

bool FusionGroups::is_kernel(const Nodes& members) const {
  const std::optional<Graph> group = as_graph(members);
  if (!group) return false;
  if (group->outputs.empty()) return true;
  std::string key = group_key(*group);
  if (const std::optional<bool> known = known_.find(key)) return *known;
  // What nothing connects has phases of its own: no kernel, but where launches are saved (fuse_side_by_side.h).
  const bool is_one = unconnected_parts(*group).size() == 1 && why_no_loops(*group).empty();
  known_.add(std::move(key), is_one);
  return is_one;
}

bool FusionGroups::is_plain(size_t node) const {
  const Node& one = graph_.nodes[node];
  if (!has(one, Trait::kElementwise)) return false;
  const Shape& shape = graph_.shape(one.outputs[0]);
  return std::ranges::all_of(one.inputs, [&](TensorId input) {
    return !reads_view(input) && (graph_.shape(input) == shape || graph_.shape(input).empty());
  });
}
bool FusionGroups::reads_view(TensorId tensor) const {
  const NodeId producer = graph_.tensors[tensor.index()].producer;
  if (!producer.valid() || roles_[producer.index()] != Role::kFree) return false;
  const Node& free = graph_.nodes[producer.index()];
  return has(free, Trait::kView) || std::ranges::any_of(free.inputs, [&](TensorId input) { return reads_view(input); });
}
bool FusionGroups::are_plain(const Nodes& members) const {
  Shape shape;
  for (size_t member : members) {
    const Shape& own = graph_.shape(graph_.nodes[member].outputs[0]);
    if (!is_plain(member) || (!shape.empty() && !own.empty() && own != shape)) return false;
    if (!own.empty()) shape = own;
  }
  return members.size() <= kMostNodes;
}

std::optional<double> FusionGroups::find_slot(const Nodes& members, double wanted) const {
  double low = -1;
  double high = 2.0 * static_cast<double>(graph_.nodes.size());
  for (size_t member : members) {
    for (TensorId tensor : read_by(member)) {
      const NodeId producer = graph_.tensors[tensor.index()].producer;
      if (producer.valid() && !members.contains(producer.index())) low = std::max(low, slot_of(producer.index()));
      if (const auto changed = changed_at_.find(tensor); changed != changed_at_.end())
        high = std::min(high, static_cast<double>(changed->second));
    }
    Nodes readers;
    add_readers(graph_.nodes[member].outputs[0], readers);
    for (size_t reader : readers)
      if (!members.contains(reader)) high = std::min(high, slot_of(reader));
  }
  if (low >= high) return std::nullopt;
  const double slot = low < wanted && wanted < high ? wanted : low + (high - low) / 2;
  return low < slot && slot < high ? std::optional(slot) : std::nullopt;
}

}  // namespace stepc
