#include "passes/rewrite/simplify.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/op_def.h"
#include "passes/rewrite/rules.h"

namespace stepc {

namespace {

using Found = std::optional<TensorId>;

bool same_shape(const RuleInput& m, size_t i) { return m.b.shape(m.in[i]) == m.type.shape; }

// ---- arithmetic

Found one_second(RuleInput& m) {
  const auto value = m.value_of(1);
  if (!value || *value != 1 || !same_shape(m, 0)) return std::nullopt;
  return m.in[0];
}
Found subtracted_zero(RuleInput& m) {
  const auto value = m.value_of(1);
  if (!value || *value != 0 || std::signbit(*value) || !same_shape(m, 0)) return std::nullopt;
  return m.in[0];
}
// x + 0 makes 0 of -0: left out for integers only, x + -0 for all.
Found added_zero(RuleInput& m) {
  const auto value = m.value_of(1);
  if (!value || *value != 0 || !same_shape(m, 0)) return std::nullopt;
  if (is_floating(m.type.dtype) && !std::signbit(*value)) return std::nullopt;
  return m.in[0];
}
Found twice_negated(RuleInput& m) {
  const Node* inner = m.made_by(0, "neg");
  if (inner == nullptr) return std::nullopt;
  return inner->inputs[0];
}
Found added_negative(RuleInput& m) {
  if (const Node* inner = m.made_by(1, "neg")) return m.b.add("sub", {m.in[0], inner->inputs[0]});
  if (const Node* inner = m.made_by(0, "neg")) return m.b.add("sub", {m.in[1], inner->inputs[0]});
  return std::nullopt;
}
Found subtracted_negative(RuleInput& m) {
  const Node* inner = m.made_by(1, "neg");
  if (inner == nullptr) return std::nullopt;
  return m.b.add("add", {m.in[0], inner->inputs[0]});
}
Found known_condition(RuleInput& m) {
  const auto condition = m.value_of(0);
  if (!condition) return std::nullopt;
  const size_t chosen = *condition != 0 ? 1 : 2;
  if (!same_shape(m, chosen)) return std::nullopt;
  return m.in[chosen];
}

// ---- casts

// Whether every value of `from` is one of `to`.
bool holds(DType to, DType from) {
  if (to == from || from == DType::kBool) return true;
  if (is_floating(from)) {
    if (is_float8(from)) return to == DType::kBF16 || to == DType::kF16 || to == DType::kF32 || to == DType::kF64;
    const bool narrow = from == DType::kBF16 || from == DType::kF16;
    return to == DType::kF64 ? is_floating(from) : to == DType::kF32 && narrow;
  }
  if (is_complex(from) || is_complex(to) || is_floating(to)) return false;
  return to != DType::kBool && to != DType::kU8 && size_of(to) > size_of(from);
}
Found same_cast(RuleInput& m) {
  if (m.b.dtype(m.in[0]) != m.type.dtype) return std::nullopt;
  return m.in[0];
}
// By way of a wider type: straight.
Found cast_of_cast(RuleInput& m) {
  const Node* inner = m.made_by(0, "cast");
  if (inner == nullptr || !holds(m.b.dtype(m.in[0]), m.b.dtype(inner->inputs[0]))) return std::nullopt;
  return m.b.cast(inner->inputs[0], m.type.dtype);
}

// ---- views

Found reshape_of_reshape(RuleInput& m) {
  if (same_shape(m, 0)) return m.in[0];
  const Node* inner = m.made_by(0, "reshape");
  if (inner == nullptr) return std::nullopt;
  return m.b.reshape(inner->inputs[0], m.type.shape);
}
Found transpose_of_transpose(RuleInput& m) {
  const Shape& outer = m.attrs.get<Shape>("permutation");
  const Node* inner = m.made_by(0, "transpose");
  if (inner == nullptr) return std::ranges::is_sorted(outer) ? Found(m.in[0]) : std::nullopt;
  Shape joined;
  for (int64_t d : outer) joined.push_back(inner->attrs.get<Shape>("permutation")[static_cast<size_t>(d)]);
  return m.b.transpose(inner->inputs[0], joined);
}
Found expand_of_expand(RuleInput& m) {
  if (same_shape(m, 0)) return m.in[0];
  const Node* inner = m.made_by(0, "expand");
  if (inner == nullptr) return std::nullopt;
  return m.b.expand(inner->inputs[0], m.type.shape);
}
Found slice_of_slice(RuleInput& m) {
  if (same_shape(m, 0)) return m.in[0];
  const Node* inner = m.made_by(0, "slice");
  if (inner == nullptr) return std::nullopt;
  Shape starts = inner->attrs.get<Shape>("starts");
  Shape steps = inner->attrs.get<Shape>("steps");
  for (size_t d = 0; d < starts.size(); ++d) {
    starts[d] += m.attrs.get<Shape>("starts")[d] * steps[d];
    steps[d] *= m.attrs.get<Shape>("steps")[d];
  }
  return m.b.slice(inner->inputs[0], starts, m.type.shape, steps);
}
// The part of a concatenation that one operand is, or a part of that.
Found slice_of_concat(RuleInput& m) {
  const Node* inner = m.made_by(0, "concat");
  if (inner == nullptr) return std::nullopt;
  const auto dim = static_cast<size_t>(inner->attrs.get<int64_t>("dim"));
  Shape starts = m.attrs.get<Shape>("starts");
  const Shape& steps = m.attrs.get<Shape>("steps");
  const int64_t last = starts[dim] + (m.type.shape[dim] - 1) * steps[dim];
  if (m.type.shape[dim] == 0) return std::nullopt;
  int64_t begin = 0;
  for (TensorId part : inner->inputs) {
    const int64_t end = begin + m.b.shape(part)[dim];
    if (begin <= starts[dim] && last < end) {
      starts[dim] -= begin;
      return m.b.slice(part, starts, m.type.shape, steps);
    }
    begin = end;
  }
  return std::nullopt;
}
// What was just written is what is read.
Found slice_of_update(RuleInput& m) {
  const Node* inner = m.made_by(0, "update_slice");
  if (inner == nullptr || inner->attrs.get<Shape>("starts") != m.attrs.get<Shape>("starts") ||
      inner->attrs.get<Shape>("steps") != m.attrs.get<Shape>("steps") || m.b.shape(inner->inputs[1]) != m.type.shape)
    return std::nullopt;
  return inner->inputs[1];
}
Found update_of_all(RuleInput& m) {
  if (!same_shape(m, 1)) return std::nullopt;
  return m.in[1];
}
Found concat_of_one(RuleInput& m) {
  if (m.in.size() != 1) return std::nullopt;
  return m.in[0];
}
// Reductions over dimensions of size 1 only.
Found reduced_units(RuleInput& m) {
  for (int64_t d : m.attrs.get<Shape>("dims"))
    if (m.b.shape(m.in[0])[static_cast<size_t>(d)] != 1) return std::nullopt;
  return m.b.reshape(m.in[0], m.type.shape);
}

// ---- matmul

bool swaps_last_two(const Shape& permutation) {
  Shape swapped(permutation.size());
  std::iota(swapped.begin(), swapped.end(), 0);
  if (swapped.size() < 2) return false;
  std::swap(swapped[swapped.size() - 1], swapped[swapped.size() - 2]);
  return permutation == swapped;
}
// The operand behind a transpose of the last two dimensions.
Found behind_transpose(const RuleInput& m, size_t i) {
  const Node* inner = m.made_by(i, "transpose");
  if (inner == nullptr || !swaps_last_two(inner->attrs.get<Shape>("permutation"))) return std::nullopt;
  return inner->inputs[0];
}
Found matmul_of_transposed(RuleInput& m) {
  const Found a = behind_transpose(m, 0);
  const Found b = behind_transpose(m, 1);
  if (!a && !b) return std::nullopt;
  std::vector<TensorId> in = m.in;  // of a scaled one also its scales
  in[0] = a.value_or(in[0]);
  in[1] = b.value_or(in[1]);
  Attrs attrs = m.attrs;
  attrs.set("transpose_a", m.attrs.get<bool>("transpose_a") != a.has_value());
  attrs.set("transpose_b", m.attrs.get<bool>("transpose_b") != b.has_value());
  return m.b.add(m.op, std::move(in), std::move(attrs));
}
// (a b)' is b' a', where nothing else wants a b.
Found transpose_of_matmul(RuleInput& m) {
  const Node* inner = m.made_by(0, "matmul");
  if (inner == nullptr || m.uses[0] != 1 || !swaps_last_two(m.attrs.get<Shape>("permutation"))) return std::nullopt;
  return m.b.add("matmul", {inner->inputs[1], inner->inputs[0]},
                 {{"transpose_a", !inner->attrs.get<bool>("transpose_b")},
                  {"transpose_b", !inner->attrs.get<bool>("transpose_a")}});
}

}  // namespace

Graph simplify(Graph graph) {
  static const RuleTable kRules = {
      {"add", added_zero},
      {"add", added_negative},
      {"sub", subtracted_zero},
      {"sub", subtracted_negative},
      {"mul", one_second},
      {"div", one_second},
      {"neg", twice_negated},
      {"where", known_condition},
      {"cast", same_cast},
      {"cast", cast_of_cast},
      {"reshape", reshape_of_reshape},
      {"transpose", transpose_of_transpose},
      {"expand", expand_of_expand},
      {"slice", slice_of_slice},
      {"slice", slice_of_concat},
      {"slice", slice_of_update},
      {"update_slice", update_of_all},
      {"concat", concat_of_one},
      {"sum", reduced_units},
      {"max", reduced_units},
      {"min", reduced_units},
      {"matmul", matmul_of_transposed},
      {"scaled_matmul", matmul_of_transposed},
      {"transpose", transpose_of_matmul},
  };
  return apply_rules(std::move(graph), kRules);
}

}  // namespace stepc
