#include "passes/rewrite/rules.h"

#include "base/check.h"
#include "ops/op_def.h"

namespace stepc {

const Node* RuleInput::made_by(size_t i, std::string_view op) const {
  const Node* node = b.graph().producer(in[i]);
  return node != nullptr && node->op == op ? node : nullptr;
}

const Node* RuleInput::made_by(size_t i, Trait trait) const {
  const Node* node = b.graph().producer(in[i]);
  return node != nullptr && has(*node, trait) ? node : nullptr;
}

std::optional<double> RuleInput::value_of(size_t i) const {
  const Node* node = made_by(i, Trait::kSplat);
  if (node == nullptr) return std::nullopt;
  return node->attrs.number("value");
}

namespace {
// One sweep; whether anything changed.
bool sweep(Graph& graph, const RuleTable& rules) {
  Rewriter r(graph);
  const std::vector<uint32_t> counts = use_counts(graph);
  bool changed = false;
  for (const Node& node : graph.nodes) {
    std::optional<TensorId> better;
    if (!node.aten && node.outputs.size() == 1) {
      r.at(node);
      const std::vector<TensorId> inputs = r.inputs_of(node);
      std::vector<uint32_t> uses;
      for (TensorId input : node.inputs) uses.push_back(counts[input.index()]);
      RuleInput m{r.b(), node.op, inputs, node.attrs, graph.type(node.outputs[0]), uses};
      for (const std::string_view op : {std::string_view(node.op), std::string_view()}) {
        const auto [begin, end] = rules.equal_range(op);
        for (auto rule = begin; rule != end && !better; ++rule) better = rule->second(m);
      }
    }
    if (better) {
      r.replace(node.outputs[0], *better);
      changed = true;
    } else {
      r.keep(node);
    }
  }
  graph = r.finish();
  return changed;
}
}  // namespace

Graph apply_rules(Graph graph, const RuleTable& rules) {
  constexpr int kMostSweeps = 100;  // every rule makes the graph smaller or moves one way; this is only a bound
  int sweeps = 0;
  while (sweep(graph, rules)) INTERNAL_CHECK_LT(++sweeps, kMostSweeps, "rewrite rules undo one another");
  return graph;
}

}  // namespace stepc
