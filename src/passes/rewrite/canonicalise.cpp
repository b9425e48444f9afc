#include "passes/rewrite/canonicalise.h"

#include <cmath>

#include "ops/op_def.h"
#include "passes/rewrite/rules.h"

namespace stepc {

namespace {

using Found = std::optional<TensorId>;

// full is made without dimensions where broadcasting gives them; an expand is left out.
TensorId unexpanded(RuleInput& m, size_t i) {
  if (const Node* full = m.made_by(i, Trait::kSplat); full != nullptr && !m.b.shape(m.in[i]).empty()) {
    Attrs attrs = full->attrs;
    attrs.set("shape", Shape());
    return m.b.add("full", {}, attrs);
  }
  if (const Node* expand = m.made_by(i, Trait::kBroadcast)) return expand->inputs[0];
  return m.in[i];
}
Shape broadcast(const GraphBuilder& b, const std::vector<TensorId>& tensors) {
  Shape out;
  for (TensorId id : tensors) {
    const Shape& shape = b.shape(id);
    if (shape.size() > out.size()) out.insert(out.begin(), shape.size() - out.size(), 1);
    const size_t missing = out.size() - shape.size();
    for (size_t d = 0; d < shape.size(); ++d)
      if (shape[d] != 1) out[d + missing] = shape[d];
  }
  return out;
}
// Drops what broadcasting does anyway, operand by operand, while the result keeps its shape.
Found unexpand(RuleInput& m) {
  std::vector<TensorId> operands = m.in;
  bool changed = false;
  for (size_t i = 0; i < operands.size(); ++i) {
    const Node* expand = m.made_by(i, Trait::kBroadcast);
    const bool is_full = m.made_by(i, Trait::kSplat) != nullptr && !m.b.shape(m.in[i]).empty();
    if (expand == nullptr && !is_full) continue;
    std::vector<TensorId> tried = operands;
    if (expand != nullptr) tried[i] = expand->inputs[0];
    if (is_full) {
      Shape without;  // the shape of the others alone
      std::vector<TensorId> others = operands;
      others.erase(others.begin() + static_cast<ptrdiff_t>(i));
      without = broadcast(m.b, others);
      if (without != m.type.shape) continue;
      tried[i] = unexpanded(m, i);
    } else if (broadcast(m.b, tried) != m.type.shape) {
      continue;
    }
    operands = tried;
    changed = true;
  }
  if (!changed) return std::nullopt;
  return m.b.add(m.op, operands, m.attrs);
}

Found constant_second(RuleInput& m) {
  if (!m.value_of(0) || m.value_of(1)) return std::nullopt;
  return m.b.add(m.op, {m.in[1], m.in[0]}, m.attrs);
}

Found power(RuleInput& m) {
  const auto exponent = m.value_of(1);
  if (!exponent || m.b.shape(m.in[0]) != m.type.shape) return std::nullopt;
  if (*exponent == 1) return m.in[0];
  if (*exponent == 2) return m.b.add("square", {m.in[0]});
  if (!is_floating(m.type.dtype)) return std::nullopt;
  if (*exponent == -1) return m.b.add("reciprocal", {m.in[0]});
  return std::nullopt;  // roots differ from powers at minus zero and minus infinity
}
Found square_of_itself(RuleInput& m) {
  if (m.in[0] != m.in[1]) return std::nullopt;
  return m.b.add("square", {m.in[0]});
}
// x - c is x + (-c), exactly.
Found subtracted_constant(RuleInput& m) {
  const auto value = m.value_of(1);
  if (!value || !is_floating(m.type.dtype)) return std::nullopt;
  return m.b.add("add", {m.in[0], m.b.full(-*value, m.type.dtype, m.b.shape(m.in[1]))});
}
// x / c is x * (1/c) where 1/c is exact.
Found divided_by_power_of_two(RuleInput& m) {
  const auto value = m.value_of(1);
  int exponent = 0;
  if (!value || !std::isfinite(*value) || std::abs(std::frexp(*value, &exponent)) != 0.5) return std::nullopt;
  if (exponent < -100 || exponent > 100) return std::nullopt;
  if (m.type.dtype == DType::kF16 && (exponent < -12 || exponent > 12)) return std::nullopt;
  return m.b.add("mul", {m.in[0], m.b.full(1 / *value, m.type.dtype, m.b.shape(m.in[1]))});
}
Found reduced_nothing(RuleInput& m) {
  if (!m.attrs.get<Shape>("dims").empty()) return std::nullopt;
  return m.in[0];
}
// A transpose that moves only dimensions of size 1 leaves memory as it is: a reshape.
Found transpose_of_units(RuleInput& m) {
  int64_t last = -1;
  for (int64_t d : m.attrs.get<Shape>("permutation")) {
    if (m.b.shape(m.in[0])[static_cast<size_t>(d)] == 1) continue;
    if (d < last) return std::nullopt;
    last = d;
  }
  return m.b.reshape(m.in[0], m.type.shape);
}
// Only new dimensions of size 1: a reshape.
Found expand_by_units(RuleInput& m) {
  if (element_count(m.b.shape(m.in[0])) != element_count(m.type.shape) || element_count(m.type.shape) == 0)
    return std::nullopt;
  return m.b.reshape(m.in[0], m.type.shape);
}
// Zeros with a window of x in them: padding.
Found window_in_zeros(RuleInput& m) {
  const auto value = m.value_of(0);
  if (!value || *value != 0 || std::signbit(*value)) return std::nullopt;
  for (int64_t step : m.attrs.get<Shape>("steps"))
    if (step != 1) return std::nullopt;
  const Shape& low = m.attrs.get<Shape>("starts");
  Shape high = m.type.shape;
  for (size_t d = 0; d < high.size(); ++d) high[d] -= low[d] + m.b.shape(m.in[1])[d];
  return m.b.add("pad", {m.in[1]}, {{"low", low}, {"high", high}});
}

}  // namespace

Graph canonicalise(Graph graph) {
  static const RuleTable kRules = {
      {"add", constant_second},
      {"add", unexpand},
      {"mul", constant_second},
      {"mul", square_of_itself},
      {"mul", unexpand},
      {"maximum", constant_second},
      {"maximum", unexpand},
      {"minimum", constant_second},
      {"minimum", unexpand},
      {"eq", constant_second},
      {"eq", unexpand},
      {"ne", constant_second},
      {"ne", unexpand},
      {"sub", subtracted_constant},
      {"sub", unexpand},
      {"div", divided_by_power_of_two},
      {"div", unexpand},
      {"pow", power},
      {"pow", unexpand},
      {"lt", unexpand},
      {"le", unexpand},
      {"where", unexpand},
      {"logical_and", unexpand},
      {"logical_or", unexpand},
      {"sum", reduced_nothing},
      {"max", reduced_nothing},
      {"min", reduced_nothing},
      {"mean", reduced_nothing},
      {"transpose", transpose_of_units},
      {"expand", expand_by_units},
      {"update_slice", window_in_zeros},
  };
  return apply_rules(std::move(graph), kRules);
}

}  // namespace stepc
