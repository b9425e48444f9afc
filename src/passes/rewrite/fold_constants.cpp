#include "passes/rewrite/fold_constants.h"

#include <algorithm>
#include <optional>

#include "ops/op_def.h"
#include "ops/rounding.h"
#include "passes/rewriter.h"

namespace stepc {

namespace {

// Division of integers by zero has no value; such a node stays and fails where it runs.
bool divides_by_zero(const OpDef& op, const std::vector<int64_t>& arguments) {
  const ScalarExpr body = scalar_expr(op.body);
  return arguments.size() == 2 && arguments[1] == 0 && std::ranges::any_of(body.steps, [](const ScalarStep& step) {
           return step.primitive == Primitive::kFloorDiv || step.primitive == Primitive::kRemainder ||
                  step.primitive == Primitive::kFmod;
         });
}

// The value of an elementwise op on single values, as the result's dtype holds it.
std::optional<AttrValue> folded(const OpDef& op, const Attrs& attrs, const std::vector<const Node*>& constants,
                                DType dtype) {
  const bool real =
      std::ranges::any_of(constants, [](const Node* node) { return is_floating(node->attrs.get<DType>("dtype")); });
  if (is_complex(dtype) || size_of(dtype) == 0) return std::nullopt;
  if (real) {
    std::vector<double> arguments;
    for (const Node* node : constants) {
      const auto held = node->attrs.get<DType>("dtype");
      const double number = node->attrs.number("value");
      arguments.push_back(is_floating(held) ? rounded(number, held) : number);
    }
    const double value = evaluate(scalar_expr(op.body), arguments, attrs);
    if (dtype == DType::kBool) return int64_t{value != 0 ? 1 : 0};
    if (is_floating(dtype)) return rounded(value, dtype);
    return wrapped(truncated(value), dtype);
  }
  std::vector<int64_t> arguments;
  for (const Node* node : constants) arguments.push_back(node->attrs.get<int64_t>("value"));
  if (divides_by_zero(op, arguments)) return std::nullopt;
  const int64_t value = evaluate(scalar_expr(op.body), arguments, attrs);
  if (is_floating(dtype)) return rounded(static_cast<double>(value), dtype);
  return wrapped(value, dtype);
}

}  // namespace

Graph fold_constants(Graph graph) {
  Rewriter r(graph);
  for (const Node& node : graph.nodes) {
    const OpDef* op = find_op(node.op);
    std::vector<const Node*> constants;
    for (TensorId input : node.inputs) {
      const Node* producer = r.b().graph().producer(r[input]);
      if (producer != nullptr && has(*producer, Trait::kSplat)) constants.push_back(producer);
    }
    const TensorType& type = graph.type(node.outputs.empty() ? TensorId(0) : node.outputs[0]);
    const bool constant = op != nullptr && !node.inputs.empty() && constants.size() == node.inputs.size();
    const bool moved = constant && op->has(Trait::kView) && graph.type(node.inputs[0]).dtype == type.dtype;
    std::optional<AttrValue> value;
    if (moved)
      value = *constants[0]->attrs.find("value");
    else if (constant && op->body != nullptr && !is_complex(type.dtype) &&
             std::ranges::all_of(node.inputs, [&](TensorId id) { return !is_complex(graph.type(id).dtype); }))
      value = folded(*op, node.attrs, constants, type.dtype);
    if (!value) {
      r.keep(node);
      continue;
    }
    r.at(node);
    r.replace(node.outputs[0],
              r.b().add("full", {}, {{"value", *value}, {"dtype", type.dtype}, {"shape", type.shape}}));
  }
  return r.finish();
}

}  // namespace stepc
