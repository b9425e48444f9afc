// Reductions drop (or keep as 1) the dimensions `dims`; scans keep the shape.
#include <algorithm>

#include "base/check.h"
#include "ops/graph_builder.h"
#include "ops/rows/families.h"
#include "ops/shape_rules.h"

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

}  // namespace stepc
