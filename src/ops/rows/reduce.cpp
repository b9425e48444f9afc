// Reductions drop (or keep as 1) the dimensions `dims`; scans keep the shape.
#include <algorithm>

#include "base/check.h"
#include "ops/graph_builder.h"
#include "ops/one_hot.h"
#include "ops/rows/families.h"
#include "ops/rules/shape_rules.h"

namespace stepc {

namespace {

std::vector<TensorType> infer_reduce(const OpCall& call) {
  return {typed(call.in(0).dtype,
                reduced_shape(call.in(0).shape, call.attrs.get<Shape>("dims"), call.attrs.get<bool>("keepdim")))};
}
std::vector<TensorType> infer_bool_reduce(const OpCall& call) {
  INTERNAL_CHECK_EQ(name_of(call.in(0).dtype), "bool");
  return infer_reduce(call);
}
std::vector<TensorType> infer_arg_reduce(const OpCall& call) {
  const Shape dims = {call.attrs.get<int64_t>("dim")};
  return {typed(DType::kI64, reduced_shape(call.in(0).shape, dims, call.attrs.get<bool>("keepdim")))};
}
std::vector<TensorType> infer_scan(const OpCall& call) {
  checked_dim(call.attrs.get<int64_t>("dim"), call.in(0).shape.size());
  return {call.in(0)};
}

ShardingRule shard_reduce(const OpCall& call, const std::vector<TensorType>& results, const Shape& dims, bool keepdim,
                          std::optional<Factor::Kind> kind) {
  ShardingRule rule = ShardingRule::whole(call.inputs, results);
  size_t r = 0;
  for (size_t d = 0; d < call.in(0).shape.size(); ++d) {
    const bool reduced = std::ranges::find(dims, static_cast<int64_t>(d)) != dims.end();
    const int64_t size = call.in(0).shape[d];
    if (size > 1 && !reduced) {
      const int factor = rule.add(size);
      rule.on_operand(factor, 0, d);
      rule.on_result(factor, 0, r);
    } else if (size > 1 && kind) {
      rule.on_operand(rule.add(size, *kind), 0, d);
    }
    if (!reduced || keepdim) ++r;
  }
  return rule;
}
template <Factor::Kind kKind>
ShardingRule shard_by(const OpCall& call, const std::vector<TensorType>& results) {
  return shard_reduce(call, results, call.attrs.get<Shape>("dims"), call.attrs.get<bool>("keepdim"), kKind);
}
ShardingRule shard_whole_dims(const OpCall& call, const std::vector<TensorType>& results) {
  return shard_reduce(call, results, call.attrs.get<Shape>("dims"), call.attrs.get<bool>("keepdim"), {});
}
ShardingRule shard_arg(const OpCall& call, const std::vector<TensorType>& results) {
  return shard_reduce(call, results, {call.attrs.get<int64_t>("dim")}, call.attrs.get<bool>("keepdim"), {});
}
ShardingRule shard_scan(const OpCall& call, const std::vector<TensorType>& results) {
  return same_dims_rule(call.inputs, results, {call.attrs.get<int64_t>("dim")});
}

double flop_an_operand(const OpCall& call, const std::vector<TensorType>&) { return count_of(call.in(0)); }

OpDef reduction(std::string_view name, std::string_view summary, InferFn infer, ShardingFn sharding) {
  OpDef op;
  op.name = name;
  op.summary = summary;
  op.attrs = {{"dims", AttrKind::kInts, {}}, {"keepdim", AttrKind::kBool, AttrValue(false)}};
  op.traits = static_cast<uint32_t>(Trait::kReduction);
  op.infer = infer;
  op.sharding = sharding;
  op.flops = flop_an_operand;
  return op;
}
OpDef fold(std::string_view name, std::string_view summary, Combine combine, InferFn infer, ShardingFn sharding) {
  OpDef op = reduction(name, summary, infer, sharding);
  op.combine = combine;
  return op;
}
OpDef arg_reduction(std::string_view name, std::string_view summary) {
  OpDef op = reduction(name, summary, infer_arg_reduce, shard_arg);
  op.traits = 0;
  op.attrs = {{"dim", AttrKind::kInt, {}}, {"keepdim", AttrKind::kBool, AttrValue(false)}};
  return op;
}

std::vector<TensorId> decompose_mean(GraphBuilder& b, const std::vector<TensorId>& in, const Attrs& attrs) {
  const DType dtype = b.dtype(in[0]);
  const TensorId sum = b.add("sum", {b.cast(in[0], wide(dtype))}, attrs);
  const double count =
      static_cast<double>(element_count(b.shape(in[0]))) / static_cast<double>(element_count(b.shape(sum)));
  return {b.cast(b.add("div", {sum, b.full(count, wide(dtype))}), dtype)};
}

}  // namespace

OpFamily reduce_ops() {
  OpDef mean = reduction("mean", "of floating-point numbers", infer_reduce, shard_whole_dims);
  mean.traits = mean.traits | Trait::kComposite;
  mean.decompose = decompose_mean;
  OpDef cumsum;
  cumsum.name = "cumsum";
  cumsum.summary = "sums up to and including each element along dim";
  cumsum.attrs = {{"dim", AttrKind::kInt, {}}};
  cumsum.infer = infer_scan;
  cumsum.sharding = shard_scan;
  cumsum.flops = flop_an_operand;
  OpDef sum = fold("sum", "0 of nothing", Combine::kSum, infer_reduce, shard_by<Factor::Kind::kSum>);
  sum.traits = sum.traits | Trait::kLinear;
  return {"reduce",
          "Many elements to one, along some dimensions. Sums of bf16 and f16 are kept in f32.",
          {
              sum,
              fold("prod", "1 of nothing", Combine::kProduct, infer_reduce, shard_whole_dims),
              fold("max", "NaN wins", Combine::kMax, infer_reduce, shard_by<Factor::Kind::kMax>),
              fold("min", "NaN wins", Combine::kMin, infer_reduce, shard_by<Factor::Kind::kMin>),
              fold("any", "whether one is true", Combine::kMax, infer_bool_reduce, shard_by<Factor::Kind::kMax>),
              fold("all", "whether none is false", Combine::kMin, infer_bool_reduce, shard_by<Factor::Kind::kMin>),
              mean,
              arg_reduction("argmax", "where the first largest element is"),
              arg_reduction("argmin", "where the first smallest element is"),
              cumsum,
          }};
}

namespace {
// Whether all elements of a tensor of `shape`, in one of `rank` dimensions, are the same along `dim`.
bool is_same_along(const Shape& shape, size_t rank, size_t dim) {
  const size_t missing = rank - shape.size();
  return dim < missing || shape[dim - missing] == 1;
}
bool is_place_along(const Graph& graph, TensorId tensor, size_t rank, size_t dim) {
  const Node* node = graph.producer(tensor);
  if (node == nullptr || node->op != "iota" || graph.shape(tensor).size() != rank) return false;
  return node->attrs.get<int64_t>("dim") == static_cast<int64_t>(dim) && node->attrs.number("start") == 0 &&
         node->attrs.number("step") == 1;
}
bool is_zero(const Graph& graph, TensorId tensor) {
  const Node* node = graph.producer(tensor);
  return node != nullptr && !node->aten && op_def(node->op).has(Trait::kSplat) && node->attrs.number("value") == 0;
}
}  // namespace

std::optional<TensorId> sum_of_one_hot(GraphBuilder& b, const Node& node, const std::vector<TensorId>& inputs) {
  const Graph& graph = b.graph();
  if (node.op != "sum" || node.attrs.get<Shape>("dims").size() != 1) return std::nullopt;
  const auto dim = static_cast<size_t>(node.attrs.get<Shape>("dims")[0]);
  Shape shape = b.shape(inputs[0]);
  const size_t rank = shape.size();
  const int64_t size = shape[dim];
  const Node* chosen = graph.producer(inputs[0]);
  if (chosen == nullptr || chosen->op != "where" || !is_zero(graph, chosen->inputs[2])) return std::nullopt;
  const TensorId value = chosen->inputs[1];
  // The conditions that are the same along the dimension, and the index that a place is to equal.
  std::vector<TensorId> conditions, open = {chosen->inputs[0]};
  std::optional<TensorId> index;
  while (!open.empty()) {
    const TensorId condition = open.back();
    open.pop_back();
    const Node* made = graph.producer(condition);
    if (is_same_along(b.shape(condition), rank, dim)) {
      conditions.push_back(condition);
    } else if (made != nullptr && made->op == "logical_and") {
      open.insert(open.end(), made->inputs.begin(), made->inputs.end());
    } else if (made != nullptr && made->op == "eq" && !index) {
      const size_t place = is_place_along(graph, made->inputs[0], rank, dim) ? 0 : 1;
      if (!is_place_along(graph, made->inputs[place], rank, dim)) return std::nullopt;
      index = made->inputs[1 - place];
    } else {
      return std::nullopt;
    }
  }
  if (!index || !is_same_along(b.shape(*index), rank, dim) || !is_same_along(b.shape(value), rank, dim) ||
      is_floating(b.dtype(*index)) || b.dtype(*index) == DType::kBool)
    return std::nullopt;
  if (b.dtype(inputs[0]) != b.dtype(value)) return std::nullopt;
  const TensorType result = infer_types(op_def(node.op), {{b.type(inputs[0])}, node.attrs})[0];
  if (result.dtype != b.dtype(value)) return std::nullopt;
  const auto number = [&](int64_t of) { return b.full(static_cast<double>(of), b.dtype(*index)); };
  conditions.push_back(b.add("le", {number(0), *index}));
  conditions.push_back(b.add("lt", {*index, number(size)}));
  TensorId all = conditions[0];
  for (size_t i = 1; i < conditions.size(); ++i) all = b.add("logical_and", {all, conditions[i]});
  const TensorId kept = b.add("where", {all, value, b.full(0, result.dtype)});
  shape[dim] = 1;
  const TensorId along = b.shape(kept) == shape ? kept : b.expand(kept, shape);
  return b.shape(along) == result.shape ? along : b.reshape(along, result.shape);
}

}  // namespace stepc
