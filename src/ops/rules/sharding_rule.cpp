#include "ops/rules/sharding_rule.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "base/check.h"
#include "ops/op_def.h"
#include "ops/rules/aten_rules.h"

namespace stepc {

ShardingRule ShardingRule::whole(const std::vector<TensorType>& operands, const std::vector<TensorType>& results) {
  ShardingRule rule;
  for (const TensorType& type : operands) rule.operands.emplace_back(type.shape.size());
  for (const TensorType& type : results) rule.results.emplace_back(type.shape.size());
  return rule;
}

int ShardingRule::add(int64_t size, Factor::Kind kind) {
  factors.push_back({size, kind});
  return static_cast<int>(factors.size()) - 1;
}

std::string to_text(const ShardingRule& rule) {
  constexpr std::string_view kKinds[] = {"parallel", "sum", "max", "min", "whole"};
  const auto dims_text = [](const ShardingRule::Dims& dims) {
    std::vector<std::string> parts;
    for (const auto& factors : dims) parts.push_back(str("{{{}}}", fmt::join(factors, ", ")));
    return str("({})", fmt::join(parts, ", "));
  };
  std::vector<std::string> parts;
  for (const auto& dims : rule.operands) parts.push_back(dims_text(dims));
  std::string out = str("{} ->", fmt::join(parts, " "));
  for (const auto& dims : rule.results) out += str(" {}", dims_text(dims));
  for (size_t f = 0; f < rule.factors.size(); ++f)
    out += str("; {} of {} {}", f, rule.factors[f].size, kKinds[static_cast<size_t>(rule.factors[f].kind)]);
  if (rule.indexed) out += str("; {} indexed by operand {}", rule.indexed->factor, rule.indexed->indices);
  if (rule.counts) out += str("; counts along {}", *rule.counts);
  if (rule.numbered) out += str("; numbered by operand {}", *rule.numbered);
  if (rule.once) out += str("; operand {} once", *rule.once);
  return out;
}

ShardingRule elementwise_rule(const std::vector<TensorType>& operands, const std::vector<TensorType>& results) {
  ShardingRule rule = ShardingRule::whole(operands, results);
  const Shape& shape = results[0].shape;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] <= 1) continue;
    const int factor = rule.add(shape[d]);
    for (size_t r = 0; r < results.size(); ++r) rule.on_result(factor, r, d);
    for (size_t i = 0; i < operands.size(); ++i) {
      const size_t missing = shape.size() - operands[i].shape.size();
      if (d >= missing && operands[i].shape[d - missing] == shape[d]) rule.on_operand(factor, i, d - missing);
    }
  }
  return rule;
}

ShardingRule reshape_rule(const TensorType& operand, const TensorType& result) {
  ShardingRule rule = ShardingRule::whole({operand}, {result});
  if (element_count(operand.shape) == 0) return rule;
  size_t i = 0;
  size_t r = 0;
  int64_t left = operand.shape.empty() ? 1 : operand.shape[0];  // what of operand dimension i has no factor yet
  int64_t right = result.shape.empty() ? 1 : result.shape[0];
  while (i < operand.shape.size() && r < result.shape.size()) {
    const int64_t common = std::gcd(left, right);
    if (common > 1) {
      const int factor = rule.add(common);
      rule.on_operand(factor, 0, i);
      rule.on_result(factor, 0, r);
    }
    left /= common;
    right /= common;
    if (left != 1 && right != 1) {
      // No common boundary here: what follows stays whole until the two walks meet again.
      while (left != right) {
        if (left < right)
          left *= operand.shape[++i];
        else
          right *= result.shape[++r];
      }
      left = right = 1;
    }
    if (left == 1 && ++i < operand.shape.size()) left = operand.shape[i];
    if (right == 1 && ++r < result.shape.size()) right = result.shape[r];
  }
  return rule;
}

ShardingRule same_dims_rule(const std::vector<TensorType>& operands, const std::vector<TensorType>& results,
                            const std::vector<int64_t>& except) {
  ShardingRule rule = ShardingRule::whole(operands, results);
  const Shape& shape = results[0].shape;
  for (size_t d = 0; d < shape.size(); ++d) {
    const bool whole = std::ranges::any_of(except, [&](int64_t dim) {
      return static_cast<size_t>(dim < 0 ? dim + static_cast<int64_t>(shape.size()) : dim) == d;
    });
    if (whole || shape[d] <= 1) continue;
    const int factor = rule.add(shape[d]);
    for (size_t i = 0; i < operands.size(); ++i)
      if (d < operands[i].shape.size() && operands[i].shape[d] == shape[d]) rule.on_operand(factor, i, d);
    for (size_t r = 0; r < results.size(); ++r)
      if (d < results[r].shape.size() && results[r].shape[d] == shape[d]) rule.on_result(factor, r, d);
  }
  return rule;
}

namespace {
Factor::Kind kind_of(const DimNames& dims, const std::string& name) {
  constexpr Factor::Kind kKinds[] = {Factor::Kind::kSum, Factor::Kind::kMax, Factor::Kind::kMin};
  for (const auto& [combined, how] : dims.combined)
    if (combined == name) return kKinds[static_cast<size_t>(how)];
  return Factor::Kind::kParallel;
}

void check_ranks(const std::vector<DimNames::Names>& names, const std::vector<TensorType>& types,
                 std::string_view what) {
  USER_CHECK(names.size() == types.size(), "it names the dimensions of {} {}s, the call has {}", names.size(), what,
             types.size());
  for (size_t t = 0; t < types.size(); ++t)
    USER_CHECK(names[t].size() == types[t].shape.size(), "it names {} dimensions of {} {}, which is a {}",
               names[t].size(), what, t, to_text(types[t]));
}
}  // namespace

ShardingRule named_rule(const DimNames& dims, const std::vector<TensorType>& operands,
                        const std::vector<TensorType>& results) {
  check_ranks(dims.operands, operands, "operand");
  check_ranks(dims.results, results, "result");
  std::map<std::string, int64_t> sizes;
  const auto for_each_dim = [&](const auto& visit) {
    for (size_t t = 0; t < operands.size() + results.size(); ++t) {
      const bool is_result = t >= operands.size();
      const size_t place = is_result ? t - operands.size() : t;
      const DimNames::Names& names = (is_result ? dims.results : dims.operands)[place];
      for (size_t d = 0; d < names.size(); ++d)
        if (names[d] != "_") visit(names[d], (is_result ? results : operands)[place].shape[d], is_result, place, d);
    }
  };
  for_each_dim([&](const std::string& name, int64_t size, bool, size_t, size_t) {
    const auto [found, is_new] = sizes.emplace(name, size);
    if (!is_new && found->second == 1) found->second = size;
  });
  ShardingRule rule = ShardingRule::whole(operands, results);
  std::map<std::string, int> factors;
  for_each_dim([&](const std::string& name, int64_t size, bool is_result, size_t place, size_t d) {
    const int64_t whole = sizes.at(name);
    USER_CHECK(size == whole || (size == 1 && !is_result), "'{}' is {} and, in {} {}, {}", name, whole,
               is_result ? "result" : "operand", place, size);
    if (whole <= 1 || size == 1) return;
    const auto found = factors.find(name);
    const int factor = found != factors.end()
                           ? found->second
                           : factors.emplace(name, rule.add(whole, kind_of(dims, name))).first->second;
    if (is_result)
      rule.on_result(factor, place, d);
    else
      rule.on_operand(factor, place, d);
  });
  return rule;
}

namespace {
// Of nothing there are no parts: a dimension of no elements is never split.
ShardingRule without_empty_factors(ShardingRule rule) {
  for (auto* tensors : {&rule.operands, &rule.results})
    for (ShardingRule::Dims& dims : *tensors)
      for (std::vector<int>& factors : dims)
        if (std::ranges::any_of(factors, [&](int f) { return rule.factors[static_cast<size_t>(f)].size == 0; }))
          factors.clear();
  return rule;
}
}  // namespace

ShardingRule sharding_rule_of(const Graph& graph, const Node& node) {
  const OpCall call = call_of(graph, node);
  std::vector<TensorType> results;
  for (TensorId output : node.outputs) results.push_back(graph.type(output));
  if (!node.aten) {
    const OpDef& op = op_def(node.op);
    return op.sharding == nullptr ? ShardingRule::whole(call.inputs, results)
                                  : without_empty_factors(op.sharding(call, results));
  }
  const bool is_named = node.aten->rule && node.aten->rule->dims;
  const std::optional<DimNames> dims = is_named ? node.aten->rule->dims : aten_dim_names(graph, node);
  return dims ? without_empty_factors(named_rule(*dims, call.inputs, results))
              : ShardingRule::whole(call.inputs, results);
}

}  // namespace stepc
