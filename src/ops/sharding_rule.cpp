#include "ops/sharding_rule.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

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
  constexpr std::string_view kKinds[] = {"parallel", "sum", "max", "min"};
  const auto dims_text = [](const ShardingRule::Dims& dims) {
    std::vector<std::string> parts;
    for (const auto& factors : dims) parts.push_back(str("{{{}}}", fmt::join(factors, ", ")));
    return str("({})", fmt::join(parts, ", "));
  };
  std::vector<std::string> parts;
  for (const auto& dims : rule.operands) parts.push_back(dims_text(dims));
  std::string out = str("{} ->", fmt::join(parts, " "));
  for (const auto& dims : rule.results) out += " " + dims_text(dims);
  for (size_t f = 0; f < rule.factors.size(); ++f)
    out += str("; {} of {} {}", f, rule.factors[f].size, kKinds[static_cast<size_t>(rule.factors[f].kind)]);
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

}  // namespace stepc
