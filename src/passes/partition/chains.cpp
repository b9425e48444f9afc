#include "passes/partition/chains.h"

#include <algorithm>

#include "ops/op_def.h"

namespace stepc {

namespace {
// Casts and views: one operand, and each element is one of its.
bool is_same_tensor(const Node& node) {
  return node.inputs.size() == 1 && (is_view(node) || (has(node, Trait::kElementwise) && has(node, Trait::kLinear)));
}
// How many ops between a matmul and what cuts its columns are looked through.
constexpr int kMostDepth = 24;
}  // namespace

bool is_zero(const Graph& graph, TensorId tensor) {
  const Node* node = graph.producer(tensor);
  while (node != nullptr && !node->aten && is_view(*node)) node = graph.producer(node->inputs[0]);
  return node != nullptr && has(*node, Trait::kSplat) && node->attrs.number("value") == 0;
}

Chains::Chains(const Graph& graph) : graph_(graph) {}

const std::vector<NodeId>& Chains::users_of(TensorId tensor) const {
  if (users_.empty()) {
    users_.resize(graph_.tensors.size());
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      for (TensorId input : graph_.nodes[n].inputs) users_[input.index()].emplace_back(n);
  }
  return users_[tensor.index()];
}

std::optional<size_t> Chains::parameter_of(TensorId tensor) const {
  const bool is_scaled = is_float8(graph_.type(tensor).dtype);  // and bounded, by numbers of its own (passes/fp8.h)
  const auto keeps_shape = [&](const Node& node) {
    return has(node, Trait::kElementwise) && graph_.shape(node.inputs[0]) == graph_.shape(node.outputs[0]);
  };
  while (const Node* node = graph_.producer(tensor)) {
    if (!is_same_tensor(*node) && !(is_scaled && keeps_shape(*node))) return std::nullopt;
    tensor = node->inputs[0];
  }
  const size_t input = graph_.tensors[tensor.index()].place;
  if (graph_.inputs[input].kind != InputKind::kParameter) return std::nullopt;
  return input;
}

std::optional<std::pair<size_t, Sharding>> Chains::seed_of(TensorId tensor, const Sharding& used, Axis axis,
                                                           const Mesh& mesh) const {
  const std::optional<size_t> input = parameter_of(tensor);
  if (!input) return std::nullopt;
  Sharding sharding = used;
  while (const Node* node = graph_.producer(tensor)) {
    const ShardingRule rule = sharding_rule_of(graph_, *node);
    const FactorSplits found = onto_factors(sharding, graph_.shape(tensor), rule.results[0], rule);
    tensor = node->inputs[0];
    sharding = from_factors(found.splits, graph_.shape(tensor), rule.operands[0], rule, mesh);
  }
  std::vector<Split> splits = splits_of(sharding, graph_.shape(tensor));
  std::erase_if(splits, [axis](const Split& split) { return split.piece.axes != std::vector<Axis>{axis}; });
  if (splits.empty()) return std::nullopt;
  return std::pair{*input, Sharding{pieces_of(splits, graph_.shape(tensor), mesh), {}}};
}

const Chains::Cuts& Chains::cuts_of(TensorId tensor, size_t dim, int depth) const {
  const auto [known, is_new] = known_.try_emplace({tensor, dim});
  if (!is_new || depth == kMostDepth) return known->second;
  Cuts cuts;
  if (graph_.shape(tensor)[dim] == 0) return known->second;
  for (NodeId user : users_of(tensor)) {
    const Node& node = graph_.nodes[user.index()];
    const ShardingRule rule = sharding_rule_of(graph_, node);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] != tensor) continue;
      int64_t inner = graph_.shape(tensor)[dim];
      for (int factor : rule.operands[i][dim]) {
        const int64_t outer = inner;
        inner /= rule.factors[static_cast<size_t>(factor)].size;
        cuts.at.insert({outer, inner});
        if (rule.factors[static_cast<size_t>(factor)].kind == Factor::Kind::kWhole)
          cuts.whole.emplace_back(inner, outer);
        if (is_view(node) || has(node, Trait::kElementwise)) add_cuts_of_result(node, rule, factor, inner, depth, cuts);
      }
    }
  }
  return known_[{tensor, dim}] = std::move(cuts);
}

// The cuts of the result's dimension that has the factor, where they are within it. `inner`: what stands behind the
// factor in the operand.
void Chains::add_cuts_of_result(const Node& node, const ShardingRule& rule, int factor, int64_t inner, int depth,
                                Cuts& cuts) const {
  for (size_t d = 0; d < rule.results[0].size(); ++d) {
    int64_t begin = graph_.shape(node.outputs[0])[d];
    for (int other : rule.results[0][d]) {
      const int64_t end = begin;
      begin /= rule.factors[static_cast<size_t>(other)].size;
      if (other != factor) continue;
      const Cuts further = cuts_of(node.outputs[0], d, depth + 1);
      const auto is_inside = [&](int64_t at) { return begin <= at && at <= end; };
      const auto back = [&](int64_t at) { return at / begin * inner; };
      for (int64_t at : further.at)
        if (is_inside(at)) cuts.at.insert(back(at));
      for (const auto& [from, to] : further.whole)
        if (is_inside(from) && is_inside(to)) cuts.whole.emplace_back(back(from), back(to));
    }
  }
}

std::vector<Chains::Part> Chains::parts_of(TensorId tensor, size_t dim) const {
  if (graph_.shape(tensor)[dim] == 0) return {{0, false}};
  Cuts cuts = cuts_of(tensor, dim, 0);
  cuts.at.insert({1, graph_.shape(tensor)[dim]});
  std::vector<Part> parts;
  for (auto at = cuts.at.rbegin(); std::next(at) != cuts.at.rend(); ++at) {
    const int64_t outer = *at, inner = *std::next(at);
    if (inner == 0 || outer % inner != 0) return {{graph_.shape(tensor)[dim], true}};  // cut in ways that do not nest
    const bool is_whole = std::ranges::any_of(
        cuts.whole, [&](const auto& range) { return range.first <= inner && outer <= range.second; });
    parts.push_back({outer / inner, !is_whole});
  }
  return parts;
}

}  // namespace stepc
