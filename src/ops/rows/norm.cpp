// Softmax and normalisations, each with its derivative. All are composites: their decomposition says what they mean,
// a kernel may do them in one sweep.
#include <numeric>

#include "base/check.h"
#include "ops/graph_builder.h"
#include "ops/rows/families.h"
#include "ops/rules/shape_rules.h"

namespace stepc {

namespace {

using Ids = std::vector<TensorId>;

std::vector<TensorType> infer_softmax(const OpCall& call) {
  check_same_dtype(call);
  checked_dim(call.attrs.get<int64_t>("dim"), call.in(0).shape.size());
  for (const TensorType& type : call.inputs)
    INTERNAL_CHECK(type == call.in(0), "{} beside {}", to_text(type), to_text(call.in(0)));
  return {call.in(0)};
}
ShardingRule shard_softmax(const OpCall& call, const std::vector<TensorType>& results) {
  return same_dims_rule(call.inputs, results, {call.attrs.get<int64_t>("dim")});
}
double flops_softmax(const OpCall&, const std::vector<TensorType>& results) { return 14 * count_of(results[0]); }

TensorId log_softmax_of(GraphBuilder& b, TensorId x, int64_t dim) {
  const TensorId top = b.add("max", {x}, {{"dims", Shape{dim}}, {"keepdim", true}});
  const TensorId shifted = b.add("sub", {x, top});
  const TensorId sum = b.sum(b.add("exp", {shifted}), {dim}, true);
  return b.add("sub", {shifted, b.add("log", {sum})});
}

Ids decompose_softmax(GraphBuilder& b, const Ids& in, const Attrs& attrs) {
  const int64_t dim = attrs.get<int64_t>("dim");
  const TensorId x = b.cast(in[0], wide(b.dtype(in[0])));
  const TensorId top = b.add("max", {x}, {{"dims", Shape{dim}}, {"keepdim", true}});
  const TensorId weights = b.add("exp", {b.add("sub", {x, top})});
  return {b.cast(b.add("div", {weights, b.sum(weights, {dim}, true)}), b.dtype(in[0]))};
}
Ids decompose_log_softmax(GraphBuilder& b, const Ids& in, const Attrs& attrs) {
  const DType dtype = b.dtype(in[0]);
  return {b.cast(log_softmax_of(b, b.cast(in[0], wide(dtype)), attrs.get<int64_t>("dim")), dtype)};
}
Ids decompose_softmax_backward(GraphBuilder& b, const Ids& in, const Attrs& attrs) {
  const DType dtype = b.dtype(in[0]);
  const TensorId weighted = b.add("mul", {b.cast(in[0], wide(dtype)), b.cast(in[1], wide(dtype))});
  const TensorId sum = b.sum(weighted, {attrs.get<int64_t>("dim")}, true);
  return {b.cast(b.add("sub", {weighted, b.add("mul", {b.cast(in[1], wide(dtype)), sum})}), dtype)};
}
Ids decompose_log_softmax_backward(GraphBuilder& b, const Ids& in, const Attrs& attrs) {
  const DType dtype = b.dtype(in[0]);
  const TensorId gradient = b.cast(in[0], wide(dtype));
  const TensorId sum = b.sum(gradient, {attrs.get<int64_t>("dim")}, true);
  const TensorId share = b.add("mul", {b.add("exp", {b.cast(in[1], wide(dtype))}), sum});
  return {b.cast(b.add("sub", {gradient, share}), dtype)};
}

OpDef softmax_row(std::string_view name, std::string_view summary, size_t arity, DecomposeFn decompose) {
  OpDef op;
  op.name = name;
  op.summary = summary;
  op.min_inputs = op.max_inputs = arity;
  op.attrs = {{"dim", AttrKind::kInt, {}}};
  op.traits = static_cast<uint32_t>(Trait::kComposite);
  op.infer = infer_softmax;
  op.sharding = shard_softmax;
  op.flops = flops_softmax;
  op.decompose = decompose;
  return op;
}

// ---- layer_norm: the statistics of the last `dims` dimensions, kept as dimensions of size 1

Shape last_dims(const Shape& shape, int64_t count) {
  Shape dims(static_cast<size_t>(count));
  std::iota(dims.begin(), dims.end(), static_cast<int64_t>(shape.size()) - count);
  return dims;
}
Shape statistics_shape(const OpCall& call, size_t x) {
  const Shape& shape = call.in(x).shape;
  const int64_t count = call.attrs.get<int64_t>("dims");
  INTERNAL_CHECK(1 <= count && count <= static_cast<int64_t>(shape.size()), "layer_norm over {} dimensions", count);
  return reduced_shape(shape, last_dims(shape, count), true);
}

std::vector<TensorType> infer_layer_norm(const OpCall& call) {
  check_same_dtype(call);
  const TensorType statistics = typed(wide(call.in(0).dtype), statistics_shape(call, 0));
  const Shape& shape = call.in(0).shape;
  const Shape scale(shape.end() - call.attrs.get<int64_t>("dims"), shape.end());
  INTERNAL_CHECK(call.in(1).shape == scale && call.in(2).shape == scale, "weight and bias are [{}]",
                 fmt::join(scale, ", "));
  return {call.in(0), statistics, statistics};
}
ShardingRule shard_layer_norm(const OpCall& call, const std::vector<TensorType>& results) {
  const size_t kept = call.in(0).shape.size() - static_cast<size_t>(call.attrs.get<int64_t>("dims"));
  ShardingRule rule = ShardingRule::whole(call.inputs, results);
  for (size_t d = 0; d < kept; ++d) {
    const int factor = rule.add(call.in(0).shape[d]);
    rule.on_operand(factor, 0, d);
    for (size_t r = 0; r < 3; ++r) rule.on_result(factor, r, d);
  }
  return rule;
}
Ids decompose_layer_norm(GraphBuilder& b, const Ids& in, const Attrs& attrs) {
  const DType dtype = b.dtype(in[0]);
  const DType acc = wide(dtype);
  const TensorId x = b.cast(in[0], acc);
  const Shape dims = last_dims(b.shape(x), attrs.get<int64_t>("dims"));
  const TensorId mean = b.add("mean", {x}, {{"dims", dims}, {"keepdim", true}});
  const TensorId centred = b.add("sub", {x, mean});
  const TensorId variance = b.add("mean", {b.add("square", {centred})}, {{"dims", dims}, {"keepdim", true}});
  const TensorId rstd = b.add("rsqrt", {b.add("add", {variance, b.full(attrs.get<double>("eps"), acc)})});
  const TensorId normal = b.add("mul", {centred, rstd});
  const TensorId scaled = b.add("mul", {normal, b.cast(in[1], acc)});
  return {b.cast(b.add("add", {scaled, b.cast(in[2], acc)}), dtype), mean, rstd};
}

// (gradient, x, mean, rstd, weight) -> gradients of x, weight and bias
std::vector<TensorType> infer_layer_norm_backward(const OpCall& call) {
  INTERNAL_CHECK(call.in(0).shape == call.in(1).shape, "the gradient is {} and x {}", to_text(call.in(0)),
                 to_text(call.in(1)));
  const TensorType statistics = typed(wide(call.in(1).dtype), statistics_shape(call, 1));
  INTERNAL_CHECK(call.in(2) == statistics && call.in(3) == statistics, "statistics are {}", to_text(statistics));
  return {call.in(1), call.in(4), call.in(4)};
}
ShardingRule shard_layer_norm_backward(const OpCall& call, const std::vector<TensorType>& results) {
  const size_t kept = call.in(1).shape.size() - static_cast<size_t>(call.attrs.get<int64_t>("dims"));
  ShardingRule rule = ShardingRule::whole(call.inputs, results);
  for (size_t d = 0; d < kept; ++d) {
    // One kind a factor: what splits x leaves the weight's gradient partial.
    const int factor = rule.add(call.in(1).shape[d], Factor::Kind::kSum);
    for (size_t i = 0; i < 4; ++i) rule.on_operand(factor, i, d);
    rule.on_result(factor, 0, d);
  }
  return rule;
}
Ids decompose_layer_norm_backward(GraphBuilder& b, const Ids& in, const Attrs& attrs) {
  const DType acc = wide(b.dtype(in[1]));
  const Shape dims = last_dims(b.shape(in[1]), attrs.get<int64_t>("dims"));
  Shape rest(b.shape(in[1]).size() - dims.size());
  std::iota(rest.begin(), rest.end(), 0);
  const TensorId gradient = b.cast(in[0], acc);
  const TensorId normal = b.add("mul", {b.add("sub", {b.cast(in[1], acc), in[2]}), in[3]});
  const TensorId scaled = b.add("mul", {gradient, b.cast(in[4], acc)});
  const auto mean = [&](TensorId x) { return b.add("mean", {x}, {{"dims", dims}, {"keepdim", true}}); };
  const TensorId along = b.add("mul", {normal, mean(b.add("mul", {scaled, normal}))});
  const TensorId inner = b.add("sub", {b.add("sub", {scaled, mean(scaled)}), along});
  const DType weight = b.dtype(in[4]);
  return {b.cast(b.add("mul", {inner, in[3]}), b.dtype(in[1])),
          b.cast(b.sum(b.add("mul", {gradient, normal}), rest), weight), b.cast(b.sum(gradient, rest), weight)};
}
double flops_layer_norm(const OpCall&, const std::vector<TensorType>& results) { return 8 * count_of(results[0]); }

}  // namespace

OpFamily norm_ops() {
  const auto composite = static_cast<uint32_t>(Trait::kComposite);
  const AttrDef dims{"dims", AttrKind::kInt, {}};
  return {"norm",
          "Softmax and normalisations; statistics of bf16 and f16 are kept in f32.",
          {
              softmax_row("softmax", "along dim", 1, decompose_softmax),
              softmax_row("log_softmax", "along dim", 1, decompose_log_softmax),
              softmax_row("softmax_backward", "(gradient, softmax(x))", 2, decompose_softmax_backward),
              softmax_row("log_softmax_backward", "(gradient, log_softmax(x))", 2, decompose_log_softmax_backward),
              {"layer_norm",
               "(x, weight, bias) to the result, mean and reciprocal deviation of the last dims dimensions",
               3,
               3,
               3,
               {dims, {"eps", AttrKind::kReal, {}}},
               composite,
               infer_layer_norm,
               shard_layer_norm,
               flops_layer_norm,
               nullptr,
               decompose_layer_norm},
              {"layer_norm_backward",
               "(gradient, x, mean, rstd, weight) to the gradients of x, weight and bias",
               5,
               5,
               3,
               {dims},
               composite,
               infer_layer_norm_backward,
               shard_layer_norm_backward,
               flops_layer_norm,
               nullptr,
               decompose_layer_norm_backward},
          }};
}

}  // namespace stepc
