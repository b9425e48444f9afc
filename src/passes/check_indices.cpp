#include "passes/check_indices.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>

#include "ops/graph_builder.h"
#include "ops/op_def.h"
#include "ops/rules/shape_rules.h"

namespace stepc {

namespace {

// By tensor: whether it is known before the step writes anything, at little cost, and whether it follows from anything
// but constants.
struct Early {
  bool known = false;
  bool of_program = false;
};

std::vector<Early> early_tensors(const Graph& graph) {
  std::vector<Early> early(graph.tensors.size());
  for (const GraphInput& input : graph.inputs) {
    const bool is_there =
        input.kind != InputKind::kScalar && input.kind != InputKind::kRng && input.kind != InputKind::kIncoming;
    early[input.tensor.index()] = {is_there, is_there};
  }
  for (const Node& node : graph.nodes) {
    if (node.aten) continue;
    const OpDef& op = op_def(node.op);
    Early made{op.has(Trait::kElementwise) || op.has(Trait::kView) || op.has(Trait::kConstant), false};
    for (TensorId input : node.inputs) {
      made.known = made.known && early[input.index()].known;
      made.of_program = made.of_program || early[input.index()].of_program;
    }
    for (TensorId output : node.outputs) early[output.index()] = made;
  }
  return early;
}

// All of 0 <= index < size, but for those that equal `ignored`.
TensorId within(GraphBuilder& b, TensorId index, int64_t size, std::optional<int64_t> ignored) {
  const auto number = [&](int64_t value) {
    return b.add("full", {}, {{"value", value}, {"dtype", DType::kI64}, {"shape", Shape()}});
  };
  index = b.cast(index, DType::kI64);
  TensorId holds = b.add("logical_and", {b.add("le", {number(0), index}), b.add("lt", {index, number(size)})});
  if (ignored) holds = b.add("logical_or", {holds, b.add("eq", {index, number(*ignored)})});
  Shape dims;
  for (size_t d = 0; d < b.shape(holds).size(); ++d) dims.push_back(static_cast<int64_t>(d));
  return dims.empty() ? holds : b.add("all", {holds}, {{"dims", dims}});
}

// Whether the tensor `made`, of a node behind the first `known` tensors, is what `other` is.
bool is_same(const Graph& graph, TensorId made, TensorId other, size_t known) {
  if (made.index() < known) return made == other;
  const Node* a = graph.producer(made);
  const Node* b = graph.producer(other);
  if (b == nullptr || a->op != b->op || a->attrs != b->attrs || a->inputs.size() != b->inputs.size()) return false;
  for (size_t i = 0; i < a->inputs.size(); ++i)
    if (!is_same(graph, a->inputs[i], b->inputs[i], known)) return false;
  return true;
}

// The guard is an output of the graph, unless it was there before.
void add_guard(GraphBuilder& b, TensorId index, int64_t size, std::optional<int64_t> ignored) {
  Graph& graph = b.graph();
  const size_t nodes = graph.nodes.size();
  const size_t tensors = graph.tensors.size();
  GraphOutput guard;
  guard.kind = GraphOutput::Kind::kGuard;
  guard.tensor = within(b, index, size, ignored);
  const bool is_there = std::ranges::any_of(graph.outputs, [&](const GraphOutput& output) {
    return output.kind == GraphOutput::Kind::kGuard && is_same(graph, guard.tensor, output.tensor, tensors);
  });
  if (!is_there) return graph.outputs.push_back(std::move(guard));
  graph.nodes.resize(nodes);
  graph.tensors.resize(tensors);
}

}  // namespace

Graph check_indices(Graph graph) {
  const std::vector<Early> early = early_tensors(graph);
  std::set<std::tuple<TensorId, int64_t, std::optional<int64_t>>> checks;  // in the order of ids
  for (const Node& node : graph.nodes) {
    const OpDef* op = node.aten ? nullptr : &op_def(node.op);
    if (op == nullptr || !op->index_use) continue;
    const TensorId index = node.inputs[op->index_use->indices];
    if (!early[index.index()].known || !early[index.index()].of_program) continue;
    const Shape& indexed = graph.shape(node.inputs[op->index_use->indexed]);
    const AttrValue* dim = node.attrs.find("dim");
    const int64_t size = indexed[dim == nullptr ? 0 : checked_dim(std::get<int64_t>(*dim), indexed.size())];
    std::optional<int64_t> ignored;
    if (op->index_use->ignores) ignored = node.attrs.get<int64_t>("ignore_index");
    checks.emplace(index, size, ignored);
  }
  GraphBuilder b(std::move(graph));
  b.set_source({Phase::kForward, ""});
  for (const auto& [index, size, ignored] : checks) add_guard(b, index, size, ignored);
  return b.take();
}

}  // namespace stepc
