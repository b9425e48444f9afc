// Tensors made from nothing: constants, and random numbers that are a pure function of (seed, step) from the rng input,
// the draw's `stream` and the element's index.
#include "base/check.h"
#include "ops/rows/families.h"
#include "ops/rules/shape_rules.h"

namespace stepc {

namespace {

std::vector<TensorType> infer_filled(const OpCall& call) {
  for (int64_t size : call.attrs.get<Shape>("shape")) INTERNAL_CHECK(size >= 0, "a size of {}", size);
  return {typed(call.attrs.get<DType>("dtype"), call.attrs.get<Shape>("shape"))};
}
std::vector<TensorType> infer_iota(const OpCall& call) {
  checked_dim(call.attrs.get<int64_t>("dim"), call.attrs.get<Shape>("shape").size());
  return infer_filled(call);
}
std::vector<TensorType> infer_constant(const OpCall& call) {
  std::vector<TensorType> types = infer_filled(call);
  const size_t given = is_floating(types[0].dtype) ? call.attrs.get<std::vector<double>>("reals").size()
                                                   : call.attrs.get<Shape>("integers").size();
  INTERNAL_CHECK_EQ(given, static_cast<size_t>(element_count(types[0].shape)), "values of a constant");
  return types;
}
std::vector<TensorType> infer_random(const OpCall& call) {
  INTERNAL_CHECK(call.in(0) == typed(DType::kI64, {2}), "the rng is {}", to_text(call.in(0)));
  std::vector<TensorType> results = infer_filled(call);
  if (call.inputs.size() > 1)
    INTERNAL_CHECK(call.in(1) == typed(DType::kI64, results[0].shape), "the places of a {} are {}", to_text(results[0]),
                   to_text(call.in(1)));
  return results;
}

ShardingRule shard_full(const OpCall& call, const std::vector<TensorType>& results) {
  return elementwise_rule(call.inputs, results);
}
ShardingRule shard_iota(const OpCall& call, const std::vector<TensorType>& results) {
  ShardingRule rule = same_dims_rule({}, results, {});
  rule.counts = checked_dim(call.attrs.get<int64_t>("dim"), results[0].shape.size());
  return rule;
}
ShardingRule shard_random(const OpCall& call, const std::vector<TensorType>& results) {
  ShardingRule rule = ShardingRule::whole(call.inputs, results);
  for (size_t d = 0; d < results[0].shape.size(); ++d) {
    const int factor = rule.add(results[0].shape[d]);
    rule.on_result(factor, 0, d);
    if (call.inputs.size() > 1) rule.on_operand(factor, 1, d);
  }
  rule.numbered = 1;
  return rule;
}
double flops_philox(const OpCall&, const std::vector<TensorType>& results) { return 30 * count_of(results[0]); }

}  // namespace

OpFamily random_ops() {
  const AttrDef shape{"shape", AttrKind::kInts, {}};
  const AttrDef dtype{"dtype", AttrKind::kDType, {}};
  const AttrDef stream{"stream", AttrKind::kInt, {}};
  const uint32_t constant = Trait::kConstant | Trait::kShapeAttr;
  const auto draws = [&](std::string_view name, std::string_view summary, Distribution distribution) {
    OpDef row{name, summary, 1, 2, 1, {shape, dtype, stream}, Trait::kRandom | Trait::kShapeAttr, infer_random};
    row.sharding = shard_random;
    row.flops = flops_philox;
    row.distribution = distribution;
    return row;
  };
  return {"random",
          "Made from attributes, or from (rng[, places]) by Philox 4x32-10: key seed, counter (place, stream, step). "
          "`places`: of each element in a larger draw that this is a part of; else its own.",
          {
              {"full",
               "one value everywhere",
               0,
               0,
               1,
               {shape, dtype, {"value", AttrKind::kNumber, {}}},
               constant | Trait::kSplat,
               infer_filled,
               shard_full},
              {"constant",
               "listed values",
               0,
               0,
               1,
               {shape,
                dtype,
                {"reals", AttrKind::kReals, AttrValue(std::vector<double>())},
                {"integers", AttrKind::kInts, AttrValue(Shape())}},
               static_cast<uint32_t>(Trait::kConstant),
               infer_constant,
               nullptr},
              {"iota",
               "start + step * i along dim",
               0,
               0,
               1,
               {shape,
                dtype,
                {"dim", AttrKind::kInt, {}},
                {"start", AttrKind::kNumber, AttrValue(int64_t{0})},
                {"step", AttrKind::kNumber, AttrValue(int64_t{1})}},
               constant,
               infer_iota,
               shard_iota},
              draws("random_uniform", "from 0 to below 1, 24 bits", Distribution::kUniform),
              draws("random_normal", "mean 0, deviation 1, by Box and Muller", Distribution::kNormal),
          }};
}

}  // namespace stepc
