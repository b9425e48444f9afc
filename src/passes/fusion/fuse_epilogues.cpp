#include "passes/fusion/fuse_epilogues.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "loops/lower/epilogue.h"
#include "ops/op_def.h"

namespace stepc {

namespace {

using Nodes = FusionGroups::Nodes;

// What can finish one matmul, and the call that it becomes.
class EpilogueOfMatmul {
 public:
  // `members`: a kernel that reads the matmul.
  EpilogueOfMatmul(const FusionGroups& groups, size_t matmul, const Nodes& members)
      : groups_(groups), graph_(groups.graph()), matmul_(matmul), members_(members), call_(call_of(groups, matmul)) {}

  // The members that can finish the matmul and gain by it: cheap ones, that read nothing else of its size and leave
  // nothing of that size behind but in its place. (Tiles are read and written at a third of the rate of a stream, and
  // costly functions hide the traffic of a kernel of their own.) None where they do not read it.
  [[nodiscard]] Nodes find() const {
    Nodes epilogue;
    for (size_t member : members_)
      if (is_in_tiles(member)) epilogue.insert(member);
    for (;;) {
      const auto out = std::ranges::find_if(
          epilogue, [&](size_t node) { return !reads_only_tiles(node, epilogue) || leaves_more(node, epilogue); });
      if (out != epilogue.end()) {
        epilogue.erase(out);
        continue;
      }
      const std::vector<size_t> left = left_behind(epilogue);
      if (left.size() <= count_matmuls()) break;
      const auto last = std::find_if(left.rbegin(), left.rend(), [&](size_t node) { return epilogue.contains(node); });
      if (last == left.rend()) return {};
      epilogue.erase(*last);
    }
    const TensorId made = graph_.nodes[matmul_].outputs[0];
    const bool reads = std::ranges::any_of(epilogue, [&](size_t node) { return groups_.read_by(node).contains(made); });
    return reads ? epilogue : Nodes();
  }

  // The call with this epilogue, and a slot for it; none where it is not one call.
  [[nodiscard]] std::optional<FusionGroup> call_with(const Nodes& epilogue) const {
    Nodes whole = epilogue;
    whole.insert(call_.nodes.begin(), call_.nodes.end());
    if (feeds_matmuls(epilogue) || !is_one_call(whole)) return std::nullopt;
    const std::optional<double> slot = groups_.find_slot(whole, call_.slot);
    if (!slot) return std::nullopt;
    return FusionGroup{groups_.in_order(whole), *slot, true};
  }

 private:
  // What the matmul runs with so far: alone, or with those that share its operand and with an epilogue.
  static FusionGroup call_of(const FusionGroups& groups, size_t matmul) {
    if (const std::optional<size_t> group = groups.group_of(matmul)) return groups.groups()[*group];
    return {{matmul}, static_cast<double>(matmul), true};
  }

  [[nodiscard]] bool is_contraction(size_t node) const { return has(graph_.nodes[node], Trait::kContraction); }
  [[nodiscard]] static bool adds_up(const Node& node) { return op_def(node.op).combine == Combine::kSum; }
  [[nodiscard]] size_t count_matmuls() const {
    return static_cast<size_t>(
        std::ranges::count_if(call_.nodes, [this](size_t node) { return is_contraction(node); }));
  }

  [[nodiscard]] bool is_in_tiles(size_t node) const {
    const Node& one = graph_.nodes[node];
    const bool to_one = adds_up(one) && element_count(graph_.shape(one.outputs[0])) == 1;
    if (!to_one && (!has(one, Trait::kElementwise) || is_costly(one))) return false;
    const Shape& shape = graph_.shape(to_one ? one.inputs[0] : one.outputs[0]);
    const Shape& tiles = graph_.shape(graph_.nodes[matmul_].outputs[0]);
    return !shape.empty() && shape.back() == tiles.back() && element_count(shape) == element_count(tiles);
  }
  [[nodiscard]] bool reads_only_tiles(size_t node, const Nodes& epilogue) const {
    const int64_t size = element_count(graph_.shape(graph_.nodes[matmul_].outputs[0]));
    return std::ranges::all_of(groups_.read_by(node), [&](TensorId tensor) {
      const NodeId producer = graph_.tensors[tensor.index()].producer;
      if (producer.valid() && epilogue.contains(producer.index())) return !adds_up(graph_.nodes[producer.index()]);
      if (producer.valid() && is_of_call(producer.index())) return true;
      return element_count(graph_.shape(tensor)) < size && !(producer.valid() && members_.contains(producer.index()));
    });
  }
  [[nodiscard]] bool is_of_call(size_t node) const {
    return node == matmul_ ||
           (is_contraction(node) && groups_.group_of(node) && groups_.group_of(node) == groups_.group_of(matmul_));
  }
  // A tensor that the group alone would have kept to itself; or an update, which would wait for matmuls that still
  // read what it replaces.
  [[nodiscard]] bool leaves_more(size_t node, const Nodes& epilogue) const {
    const TensorId made = graph_.nodes[node].outputs[0];
    if (element_count(graph_.shape(made)) == 1 || !groups_.escapes(made, epilogue)) return false;
    return !groups_.escapes(made, members_) || graph_.nodes[node].source.phase != graph_.nodes[matmul_].source.phase;
  }
  // What the call would leave behind with this epilogue, and with one that it has.
  [[nodiscard]] std::vector<size_t> left_behind(const Nodes& epilogue) const {
    Nodes whole = epilogue;
    whole.insert(call_.nodes.begin(), call_.nodes.end());
    std::vector<size_t> left;
    for (size_t node : groups_.in_order(whole)) {
      const TensorId made = graph_.nodes[node].outputs[0];
      if (element_count(graph_.shape(made)) > 1 && groups_.escapes(made, whole)) left.push_back(node);
    }
    return left;
  }

  [[nodiscard]] bool feeds_matmuls(const Nodes& epilogue) const {
    return std::ranges::any_of(call_.nodes, [&](size_t node) {
      if (!is_contraction(node)) return false;
      return std::ranges::any_of(groups_.read_by(node), [&](TensorId tensor) {
        const NodeId producer = graph_.tensors[tensor.index()].producer;
        return producer.valid() && epilogue.contains(producer.index());
      });
    });
  }
  [[nodiscard]] bool is_one_call(const Nodes& members) const {
    const std::optional<Graph> group = groups_.as_graph(members);
    return group && why_no_epilogue(*group).empty();
  }

  const FusionGroups& groups_;
  const Graph& graph_;
  size_t matmul_;
  const Nodes& members_;
  FusionGroup call_;
};

// Matmuls on the blocked kernel, the last first: it has to wait for the others anyway.
std::vector<size_t> matmuls_read_by(const FusionGroups& groups, const Nodes& members, const MatmulRule& rule) {
  const Graph& graph = groups.graph();
  std::set<size_t, std::greater<>> matmuls;
  for (size_t member : members)
    for (TensorId tensor : groups.read_by(member)) {
      const NodeId producer = graph.tensors[tensor.index()].producer;
      if (producer.valid() && runs_blocked(graph, graph.nodes[producer.index()], rule))
        matmuls.insert(producer.index());
    }
  return {matmuls.begin(), matmuls.end()};
}

// Takes the epilogue of `matmul` out of the group's members; what is left stays a kernel.
bool move_epilogue(FusionGroups& groups, size_t group, const Nodes& members, size_t matmul) {
  const EpilogueOfMatmul finished(groups, matmul, members);
  const Nodes epilogue = finished.find();
  if (epilogue.empty()) return false;
  Nodes rest;
  std::ranges::set_difference(members, epilogue, std::inserter(rest, rest.end()));
  const std::optional<FusionGroup> call = finished.call_with(epilogue);
  if (!call || (!rest.empty() && !groups.is_kernel(rest))) return false;
  const std::optional<size_t> home = groups.group_of(matmul);
  groups.set(home ? *home : groups.add(), *call);
  groups.set(group, {{rest.begin(), rest.end()}, groups.groups()[group].slot});
  return true;
}

}  // namespace

void fuse_epilogues(FusionGroups& groups, const MatmulRule& rule) {
  for (size_t group = 0; group < groups.groups().size(); ++group) {
    if (groups.groups()[group].matmuls) continue;
    const std::vector<size_t>& nodes = groups.groups()[group].nodes;
    const Nodes members(nodes.begin(), nodes.end());
    for (size_t matmul : matmuls_read_by(groups, members, rule))
      if (move_epilogue(groups, group, members, matmul)) break;
  }
}

}  // namespace stepc
