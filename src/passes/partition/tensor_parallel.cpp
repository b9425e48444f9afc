#include "passes/partition/tensor_parallel.h"

#include "ops/op_def.h"

namespace stepc {

namespace {
// Of `parts` the first that divides, else the first that is large enough for a part a rank.
std::optional<Split> split_among(const std::vector<Chains::Part>& parts, size_t factor, int64_t size, Axis axis,
                                 int64_t ranks) {
  if (size == 0) return std::nullopt;
  for (const bool divides : {true, false}) {
    int64_t inner = size;
    for (const auto& [extent, splits] : parts) {
      inner /= extent;
      if (splits && (divides ? extent % ranks == 0 : extent > ranks))
        return Split{factor, {divides ? ranks : extent, {axis}}, divides ? inner * (extent / ranks) : inner};
    }
  }
  return std::nullopt;
}
}  // namespace

std::optional<TensorParallelSplit> tensor_parallel_split(const Graph& graph, const Node& node, const ShardingRule& rule,
                                                         Axis axis, int64_t ranks, const Chains& chains) {
  if (rule.indexed && !rule.indexed->values) {
    const auto factor = static_cast<size_t>(rule.indexed->factor);
    const size_t table = op_def(node.op).index_use->indexed;
    if (!chains.parameter_of(node.inputs[table])) return std::nullopt;
    const auto rows = split_among({{rule.factors[factor].size, true}}, factor, rule.factors[factor].size, axis, ranks);
    return rows ? std::optional(TensorParallelSplit{*rows}) : std::nullopt;
  }
  if (!has(node, Trait::kContraction)) return std::nullopt;
  for (size_t weight = 0; weight < 2; ++weight) {
    if (!chains.parameter_of(node.inputs[weight]) || chains.parameter_of(node.inputs[1 - weight])) continue;
    for (size_t d = 0; d < rule.results[0].size(); ++d)
      for (int factor : rule.results[0][d]) {
        const auto f = static_cast<size_t>(factor);
        if (!has_factor(rule.operands[weight], f) || has_factor(rule.operands[1 - weight], f)) continue;
        const std::vector<Chains::Part> parts = chains.parts_of(node.outputs[0], d);
        if (const auto split = split_among(parts, f, rule.factors[f].size, axis, ranks))
          return TensorParallelSplit{*split, parts.size() > 1};
      }
  }
  return std::nullopt;
}

}  // namespace stepc
