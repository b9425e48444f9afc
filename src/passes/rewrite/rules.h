// Local rewrite rules, shared by canonicalise and simplify. A rule inspects one node, on the new graph's tensors, and
// returns the tensor that replaces its only output, or none.
#pragma once

#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "ops/op_def.h"
#include "passes/rewriter.h"

namespace stepc {

struct RuleInput {
  GraphBuilder& b;
  std::string_view op;
  const std::vector<TensorId>& in;
  const Attrs& attrs;
  const TensorType& type;             // of the output
  const std::vector<uint32_t>& uses;  // by operand, before the rules ran

  // The node that makes operand i, if it is `op`.
  [[nodiscard]] const Node* made_by(size_t i, std::string_view op) const;
  [[nodiscard]] const Node* made_by(size_t i, Trait trait) const;  // if its op has the trait
  // The single value of all elements of operand i.
  [[nodiscard]] std::optional<double> value_of(size_t i) const;
};
using Rule = std::optional<TensorId> (*)(RuleInput& m);
using RuleTable = std::multimap<std::string_view, Rule>;  // by op, tried in order; "" applies to every op

// Applies the first rule that fits to every node, until nothing changes.
Graph apply_rules(Graph graph, const RuleTable& rules);

}  // namespace stepc
