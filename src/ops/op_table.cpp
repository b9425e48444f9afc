#include <algorithm>
#include <map>

#include "base/check.h"
#include "ops/op_def.h"
#include "ops/rows/families.h"

namespace stepc {

const std::vector<OpFamily>& op_families() {
  static const std::vector<OpFamily> kFamilies = [] {
    std::vector<OpFamily> all = {elementwise_ops(), view_ops(),      reduce_ops(),    matmul_ops(),
                                 norm_ops(),        attention_ops(), index_ops(),     random_ops(),
                                 loss_ops(),        optimizer_ops(), collective_ops()};
    for (OpFamily& family : all)
      for (OpDef& op : family.ops) op.family = family.name;
    return all;
  }();
  return kFamilies;
}

const OpDef* find_op(std::string_view name) {
  static const auto kByName = [] {
    std::map<std::string_view, const OpDef*> map;
    for (const OpFamily& family : op_families())
      for (const OpDef& op : family.ops) INTERNAL_CHECK(map.emplace(op.name, &op).second, "{} has two rows", op.name);
    return map;
  }();
  const auto found = kByName.find(name);
  return found == kByName.end() ? nullptr : found->second;
}

const OpDef& op_def(std::string_view name) {
  const OpDef* op = find_op(name);
  INTERNAL_CHECK(op != nullptr, "no op is named '{}'", name);
  return *op;
}

OpCall call_of(const Graph& graph, const Node& node) {
  OpCall call;
  for (TensorId input : node.inputs) call.inputs.push_back(graph.type(input));
  call.attrs = node.attrs;
  return call;
}

namespace {
bool is_kind(const AttrValue& value, AttrKind kind) {
  switch (kind) {
    case AttrKind::kBool:
      return std::holds_alternative<bool>(value);
    case AttrKind::kInt:
      return std::holds_alternative<int64_t>(value);
    case AttrKind::kReal:
      return std::holds_alternative<double>(value);
    case AttrKind::kNumber:
      return std::holds_alternative<int64_t>(value) || std::holds_alternative<double>(value);
    case AttrKind::kDType:
      return std::holds_alternative<DType>(value);
    case AttrKind::kInts:
      return std::holds_alternative<std::vector<int64_t>>(value);
    case AttrKind::kReals:
      return std::holds_alternative<std::vector<double>>(value);
    case AttrKind::kWord:
      return std::holds_alternative<std::string>(value);
  }
  return false;
}
}  // namespace

Attrs complete_attrs(const OpDef& op, Attrs attrs) {
  for (const AttrDef& def : op.attrs) {
    if (attrs.find(def.name) == nullptr) {
      INTERNAL_CHECK(def.otherwise.has_value(), "{} needs the attribute '{}'", op.name, def.name);
      attrs.set(def.name, *def.otherwise);
    }
    INTERNAL_CHECK(is_kind(*attrs.find(def.name), def.kind), "{}: attribute '{}' is {}, of the wrong kind", op.name,
                   def.name, to_text(*attrs.find(def.name)));
  }
  for (const Attr& attr : attrs.list())
    INTERNAL_CHECK(std::ranges::any_of(op.attrs, [&](const AttrDef& def) { return def.name == attr.name; }),
                   "{} has no attribute '{}'", op.name, attr.name);
  return attrs;
}

std::vector<TensorType> infer_types(const OpDef& op, const OpCall& call) {
  INTERNAL_CHECK(op.min_inputs <= call.inputs.size() && call.inputs.size() <= op.max_inputs,
                 "{} takes {} {} operands and has {}", op.name, op.min_inputs,
                 op.max_inputs == kMany ? "or more" : str("to {}", op.max_inputs), call.inputs.size());
  std::vector<TensorType> results = op.infer(call);
  const size_t operands = call.inputs.size();
  const size_t wanted = op.outputs == kMany ? operands : op.outputs == kHalf ? operands / 2 : op.outputs;
  INTERNAL_CHECK_EQ(results.size(), wanted, "{}", op.name);
  return results;
}

double flops_of(const OpDef& op, const OpCall& call) {
  return op.flops == nullptr ? 0.0 : op.flops(call, infer_types(op, call));
}

double bytes_moved(const OpDef& op, const OpCall& call) {
  if (op.has(Trait::kView)) return 0.0;
  const std::vector<TensorType> results = infer_types(op, call);
  if (op.bytes != nullptr) return op.bytes(call, results);
  double bytes = 0;
  for (const TensorType& type : call.inputs) bytes += static_cast<double>(bytes_of(type));
  for (const TensorType& type : results) bytes += static_cast<double>(bytes_of(type));
  return bytes;
}

bool is_costly(const Node& node) {
  const OpDef& op = op_def(node.op);
  if (op.has(Trait::kRandom)) return true;
  if (op.body == nullptr) return false;
  constexpr Primitive kCostly[] = {Primitive::kExp, Primitive::kLog, Primitive::kLog1p, Primitive::kExpm1,
                                   Primitive::kSin, Primitive::kCos, Primitive::kTan,   Primitive::kTanh,
                                   Primitive::kErf, Primitive::kPow, Primitive::kAtan2, Primitive::kFmod};
  const ScalarExpr body = scalar_expr(op.body);
  return std::ranges::any_of(body.steps, [&](const ScalarStep& step) {
    return std::ranges::find(kCostly, step.primitive) != std::end(kCostly);
  });
}

bool is_matmul_group(const Graph& group) { return has(group.nodes.front(), Trait::kContraction); }

void verify_ops(const Graph& graph) {
  verify(graph);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.aten) continue;
    const OpDef* op = find_op(node.op);
    INTERNAL_CHECK(op != nullptr, "node {}: no op is named '{}'", n, node.op);
    try {
      INTERNAL_CHECK(complete_attrs(*op, node.attrs) == node.attrs, "attributes {} lack some", to_text(node.attrs));
      const std::vector<TensorType> types = infer_types(*op, call_of(graph, node));
      INTERNAL_CHECK_EQ(types.size(), node.outputs.size());
      for (size_t k = 0; k < types.size(); ++k)
        INTERNAL_CHECK(types[k] == graph.type(node.outputs[k]), "output {} is {} and the op makes {}", k,
                       to_text(graph.type(node.outputs[k])), to_text(types[k]));
    } catch (const InternalError& error) {
      throw InternalError(str("node {} {} (in '{}'): {}", n, node.op, node.source.module, error.what()));
    }
  }
}

}  // namespace stepc
