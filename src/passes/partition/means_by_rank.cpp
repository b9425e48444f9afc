#include "passes/partition/means_by_rank.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "ops/op_def.h"
#include "passes/rewriter.h"

namespace stepc {

namespace {

class Averages {
 public:
  Averages(const Graph& graph, int64_t ranks) : old_(graph), r_(graph), ranks_(ranks), is_own_(graph.tensors.size()) {}

  Graph run() {
    for (const GraphInput& input : old_.inputs) is_own_[input.tensor.index()] = input.kind == InputKind::kBatch;
    for (const Node& node : old_.nodes) visit(node);
    Graph out = r_.finish();
    for (GraphOutput& output : out.outputs) leave(out, output);
    return out;
  }

 private:
  void visit(const Node& node) {
    if (is_host_code(node)) return give(node);
    std::vector<TensorId> inputs;
    bool is_own = false;
    for (TensorId input : node.inputs) {
      const bool is_gradient = is_own_[input.index()] && old_.producer(input) != nullptr &&
                               old_.producer(input)->source.phase == Phase::kBackward;
      const bool leaves = is_gradient && node.source.phase == Phase::kUpdate;
      USER_CHECK(!is_gradient || node.source.phase != Phase::kForward,
                 "loss_mean = \"ranks\" averages gradients when the backward pass has ended, and {} (in '{}') uses one "
                 "where gradients are recorded: put that under torch.no_grad()",
                 node.op, node.source.module);
      is_own |= is_own_[input.index()] && !leaves;
      inputs.push_back(leaves ? averaged(node, input) : r_[input]);
    }
    for (TensorId output : node.outputs) is_own_[output.index()] = is_own;
    Graph& graph = r_.b().graph();
    r_.keep(node);
    graph.nodes.back().inputs = inputs;
  }

  // What the host reads is the same on all ranks: their mean.
  void give(const Node& node) {
    std::vector<TensorId> inputs;
    for (TensorId input : node.inputs) {
      const TensorType& type = old_.type(input);
      USER_CHECK(
          !is_own_[input.index()] || (is_floating(type.dtype) && element_count(type.shape) == 1),
          "loss_mean = \"ranks\" reads the ranks' mean of single numbers on the host, and the step reads {} of each "
          "rank's own rows: compare what .item() of a mean gives",
          to_text(type));
      inputs.push_back(is_own_[input.index()] ? averaged(node, input) : r_[input]);
    }
    Graph& graph = r_.b().graph();
    r_.keep(node);
    graph.nodes.back().inputs = inputs;
  }

  TensorId averaged(const Node& user, TensorId old) {
    const auto [known, is_new] = averaged_.try_emplace(old);
    r_.at(user);
    if (is_new) known->second = r_.b().add("average", {r_[old]}, {{"ranks", ranks_}});
    return known->second;
  }

  // Of a result: whether it is, but for views, the mean of many numbers. Such are gradients, which belong to
  // parameters.
  static bool is_of_many(const Graph& graph, TensorId tensor) {
    const Node* node = graph.producer(tensor);
    while (node != nullptr && !node->aten && is_view(*node)) node = graph.producer(node->inputs[0]);
    return node != nullptr && averages(*node) && element_count(graph.shape(node->outputs[0])) > 1;
  }

  void leave(Graph& out, GraphOutput& output) {
    if (!output.tensor.valid() || output.kind == GraphOutput::Kind::kGuard) return;
    const size_t place = static_cast<size_t>(&output - out.outputs.data());
    const TensorId old = old_.outputs[place].tensor;
    const TensorType type = old_.type(old);
    const bool is_own = is_own_[old.index()];
    const Node* producer = old_.producer(old);
    const bool is_gradient = is_own && producer != nullptr && producer->source.phase == Phase::kBackward;
    if (output.kind != GraphOutput::Kind::kUpdate) {
      USER_CHECK(
          !(is_own && element_count(type.shape) != 1) && !is_of_many(out, output.tensor),
          "loss_mean = \"ranks\" returns the ranks' mean of single numbers, and the step returns {} of each rank's "
          "own rows: return losses and metrics, as means",
          to_text(type));
      USER_CHECK(
          !is_own || is_floating(type.dtype),
          "loss_mean = \"ranks\" returns the ranks' mean of numbers, and the step returns a {} of each rank's own "
          "rows: return it as a float",
          name_of(type.dtype));
    } else {
      const GraphInput& input = out.inputs[output.input];
      USER_CHECK(!is_own || (input.kind != InputKind::kBuffer && is_floating(type.dtype) &&
                             (is_gradient || element_count(type.shape) == 1)),
                 "loss_mean = \"ranks\" cannot keep {} '{}' alike on the ranks: each changes it by its own rows",
                 name_of(input.kind), input.key);
    }
    if (!is_own) return;
    const auto known = averaged_.find(old);
    if (known != averaged_.end()) {
      output.tensor = known->second;
      return;
    }
    Node node;
    node.op = "average";
    node.inputs = {output.tensor};
    node.attrs.set("ranks", ranks_);
    node.source = {Phase::kUpdate, ""};
    const NodeId made = out.add_node(std::move(node), {type});
    averaged_[old] = output.tensor = out.nodes[made.index()].outputs[0];
  }

  const Graph& old_;
  Rewriter r_;
  int64_t ranks_;
  std::vector<bool> is_own_;               // by old tensor
  std::map<TensorId, TensorId> averaged_;  // by old tensor
};

}  // namespace

std::vector<Axis> data_axes(const Mesh& mesh) {
  std::vector<Axis> axes;
  for (std::string_view name : {std::string_view("dp_replicate"), std::string_view("dp_shard"), kMicroBatchAxis})
    if (const auto axis = mesh.find(name)) axes.push_back(*axis);
  return axes;
}

Graph average_what_leaves(const Graph& graph, const Strategy& strategy) {
  const std::vector<Axis> axes = data_axes(strategy.mesh);
  if (!strategy.means_by_rank || axes.empty()) return graph;
  return Averages(graph, strategy.mesh.size(axes)).run();
}

bool averages(const Node& node) {
  return collective_of(node) == Collective::kReshard && node.attrs.find("ranks") != nullptr;
}

std::vector<bool> own_to_ranks(const Graph& graph, const Strategy& strategy) {
  std::vector<bool> is_own(graph.tensors.size());
  if (!strategy.means_by_rank || data_axes(strategy.mesh).empty()) return is_own;
  for (const GraphInput& input : graph.inputs) is_own[input.tensor.index()] = input.kind == InputKind::kBatch;
  for (const Node& node : graph.nodes) {
    const bool is_mixed = std::ranges::any_of(node.inputs, [&](TensorId input) { return is_own[input.index()]; });
    for (TensorId output : node.outputs) is_own[output.index()] = is_mixed && !averages(node);
  }
  return is_own;
}

}  // namespace stepc
