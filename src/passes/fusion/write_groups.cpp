#include "passes/fusion/write_groups.h"

#include <algorithm>
#include <span>

#include "ops/op_def.h"

namespace stepc {

namespace {

class Writer {
 public:
  Writer(const FusionGroups& groups, std::vector<NodeId>* made_of)
      : all_(groups), graph_(groups.graph()), made_of_(made_of), now_(groups.graph().tensors.size()) {}

  Graph write() {
    out_.mesh = graph_.mesh;
    for (const GraphInput& input : graph_.inputs)
      now_[input.tensor.index()] = out_.add_input(input, graph_.type(input.tensor));
    std::vector<std::pair<double, FusionGroup>> units;
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      if (all_.role(n) == Role::kOutside) units.push_back({static_cast<double>(n), {{n}, 0}});
    for (const FusionGroup& group : all_.groups())
      if (!group.nodes.empty()) units.push_back({group.slot, group});
    std::ranges::stable_sort(units, {}, &std::pair<double, FusionGroup>::first);
    for (const auto& [slot, unit] : units) {
      const size_t first = unit.nodes.front();
      if (!all_.group_of(first))
        keep(first, std::nullopt);
      else
        write_group(unit);
    }
    for (GraphOutput output : graph_.outputs) {
      if (output.tensor.valid()) output.tensor = outside(output.tensor);
      out_.outputs.push_back(std::move(output));
    }
    return std::move(out_);
  }

 private:
  void write_group(const FusionGroup& unit) {
    copies_.clear();
    const auto end_of_matmuls = std::ranges::find_if_not(
        unit.nodes, [this](size_t member) { return has(graph_.nodes[member], Trait::kContraction); });
    const std::span matmuls(unit.nodes.begin(), end_of_matmuls), others(end_of_matmuls, unit.nodes.end());
    // What matmuls read lies in memory: it is made before the group, whose nodes stand in a row.
    for (size_t member : matmuls)
      for (TensorId input : graph_.nodes[member].inputs) copies_[input] = outside(input);
    for (size_t member : matmuls) keep(member, groups_);
    copies_.clear();
    for (size_t member : others) keep(member, groups_);
    ++groups_;
  }
  // A tensor as a node outside reads it: free nodes are made when first needed.
  TensorId outside(TensorId tensor) {
    TensorId& now = now_[tensor.index()];
    if (!now.valid()) keep(graph_.tensors[tensor.index()].producer.index(), std::nullopt);
    return now_[tensor.index()];
  }
  TensorId in_group(TensorId tensor) {
    const NodeId producer = graph_.tensors[tensor.index()].producer;
    if (!producer.valid() || all_.role(producer.index()) != Role::kFree) return now_[tensor.index()];
    if (const auto found = copies_.find(tensor); found != copies_.end()) return found->second;
    const TensorId copy = append(producer.index(), groups_)[0];
    copies_[tensor] = copy;
    return copy;
  }
  const std::vector<TensorId>& append(size_t place, std::optional<uint32_t> group) {
    Node node = graph_.nodes[place];
    std::vector<TensorType> types;
    for (TensorId output : node.outputs) types.push_back(graph_.type(output));
    for (TensorId& input : node.inputs) input = group ? in_group(input) : outside(input);
    node.group = group;
    if (made_of_ != nullptr) made_of_->push_back(NodeId(place));
    return out_.nodes[out_.add_node(std::move(node), types).index()].outputs;
  }
  void keep(size_t place, std::optional<uint32_t> group) {
    const std::vector<TensorId> made = append(place, group);
    const Node& node = graph_.nodes[place];
    for (size_t k = 0; k < made.size(); ++k) now_[node.outputs[k].index()] = made[k];
  }

  const FusionGroups& all_;
  const Graph& graph_;
  std::vector<NodeId>* made_of_;
  Graph out_;
  std::vector<TensorId> now_;            // by old tensor
  std::map<TensorId, TensorId> copies_;  // by old tensor: what the group at hand reads in place of free nodes
  uint32_t groups_ = 0;
};

}  // namespace

Graph write_groups(const FusionGroups& groups, std::vector<NodeId>* made_of) { return Writer(groups, made_of).write(); }

}  // namespace stepc
