#include "passes/rewrite/common_subexpressions.h"

#include <algorithm>
#include <array>
#include <map>

#include "ops/op_def.h"
#include "passes/rewriter.h"

namespace stepc {

namespace {

struct Key {
  std::string op;
  std::vector<TensorId> inputs;
  std::string attrs;
  auto operator<=>(const Key&) const = default;
};
Key key_of(const Node& node, std::vector<TensorId> inputs) {
  if (op_def(node.op).has(Trait::kCommutative)) std::ranges::sort(inputs);
  return {node.op, std::move(inputs), to_text(node.attrs)};
}

bool costs_no_memory(const Node& node) {
  const OpDef& op = op_def(node.op);
  return op.has(Trait::kView) || op.has(Trait::kConstant);
}

// By tensor: the last node that reads it, through views, whatever is merged. Readers that may be merged themselves are
// not counted: they would read something else.
std::vector<size_t> certain_ends(const Graph& graph) {
  std::vector<bool> repeats(graph.nodes.size(), false);
  std::map<Key, std::vector<TensorId>> made;
  std::vector<TensorId> same(graph.tensors.size());  // by tensor: the first that is equal
  for (size_t t = 0; t < same.size(); ++t) same[t] = TensorId(t);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.aten) continue;
    std::vector<TensorId> inputs;
    for (TensorId input : node.inputs) inputs.push_back(same[input.index()]);
    const auto [first, is_new] = made.try_emplace(key_of(node, std::move(inputs)), node.outputs);
    repeats[n] = !is_new;
    for (size_t k = 0; k < node.outputs.size(); ++k) same[node.outputs[k].index()] = first->second[k];
  }
  std::vector<size_t> ends(graph.tensors.size(), 0);
  for (const GraphOutput& output : graph.outputs)
    if (output.tensor.valid()) ends[output.tensor.index()] = graph.nodes.size();
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    const bool is_free = !node.aten && costs_no_memory(node);
    if (repeats[n] && !is_free) continue;
    size_t end = is_free ? 0 : n;
    if (is_free)
      for (TensorId output : node.outputs) end = std::max(end, ends[output.index()]);
    for (TensorId input : node.inputs) ends[input.index()] = std::max(ends[input.index()], end);
  }
  return ends;
}

class Merger {
 public:
  explicit Merger(const Graph& graph)
      : graph_(graph), r_(graph), uses_(use_counts(graph)), ends_(certain_ends(graph)) {}

  Graph run() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (node.aten)
        r_.keep(node);
      else
        visit(n, node);
    }
    return r_.finish();
  }

 private:
  static constexpr Phase kPhases[] = {Phase::kForward, Phase::kBackward, Phase::kUpdate};
  using ByPhase = std::array<const Node*, std::size(kPhases)>;

  void visit(size_t place, const Node& node) {
    ByPhase& made = made_[key_of(node, r_.inputs_of(node))];
    const Node*& own = made[static_cast<size_t>(node.source.phase)];
    const Node* same = own;
    // What is gathered again in another phase is not kept from one to the other: that is why it is.
    const bool crosses = collective_of(node) == Collective::kNone;
    for (const Node* other : made)
      if (crosses && same == nullptr && other != nullptr && (costs_no_memory(node) || lives_on(*other, node, place)))
        same = other;
    if (same == nullptr) {
      own = &node;
      r_.keep(node);
      return;
    }
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      r_.replace(node.outputs[k], r_[same->outputs[k]]);
      size_t& end = ends_[same->outputs[k].index()];
      end = std::max(end, ends_[node.outputs[k].index()]);
    }
  }
  // Whether all that is read of `again` at `place` is still there from `first`.
  [[nodiscard]] bool lives_on(const Node& first, const Node& again, size_t place) const {
    for (size_t k = 0; k < again.outputs.size(); ++k)
      if (uses_[again.outputs[k].index()] > 0 && ends_[first.outputs[k].index()] < place) return false;
    return true;
  }

  const Graph& graph_;
  Rewriter r_;
  std::vector<uint32_t> uses_;
  std::vector<size_t> ends_;
  std::map<Key, ByPhase> made_;  // what is kept
};

}  // namespace

Graph common_subexpressions(Graph graph) {  // NOLINT(performance-unnecessary-value-param): a PassFn
  return Merger(graph).run();
}

}  // namespace stepc
