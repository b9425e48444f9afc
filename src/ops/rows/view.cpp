// Views: elements move, nothing is computed. Every op here makes a new tensor; that it may cost nothing is the memory
// planner's and the code generator's business.
#include "base/check.h"
#include "ops/rows/families.h"
#include "ops/rules/shape_rules.h"

namespace stepc {

namespace {

std::vector<TensorType> infer_reshape(const OpCall& call) {
  const Shape& shape = call.attrs.get<Shape>("shape");
  INTERNAL_CHECK_EQ(element_count(call.in(0).shape), element_count(shape), "elements of the two shapes");
  return {typed(call.in(0).dtype, shape)};
}

std::vector<TensorType> infer_transpose(const OpCall& call) {
  const Shape& permutation = call.attrs.get<Shape>("permutation");
  check_permutation(permutation, call.in(0).shape.size());
  Shape shape;
  for (int64_t d : permutation) shape.push_back(call.in(0).shape[static_cast<size_t>(d)]);
  return {typed(call.in(0).dtype, shape)};
}

std::vector<TensorType> infer_expand(const OpCall& call) {
  const Shape& shape = call.attrs.get<Shape>("shape");
  INTERNAL_CHECK(broadcast_shape({call.in(0), typed(call.in(0).dtype, shape)}) == shape,
                 "a [{}] does not expand to [{}]", fmt::join(call.in(0).shape, ", "), fmt::join(shape, ", "));
  return {typed(call.in(0).dtype, shape)};
}

void check_window(const Shape& shape, const Shape& starts, const Shape& sizes, const Shape& steps) {
  INTERNAL_CHECK(starts.size() == shape.size() && sizes.size() == shape.size() && steps.size() == shape.size(),
                 "a window needs a start, a size and a step a dimension");
  for (size_t d = 0; d < shape.size(); ++d) {
    INTERNAL_CHECK(starts[d] >= 0 && sizes[d] >= 0 && steps[d] >= 1, "dimension {} of the window", d);
    if (sizes[d] > 0)
      INTERNAL_CHECK_LT(starts[d] + (sizes[d] - 1) * steps[d], shape[d], "dimension {} of the window", d);
  }
}

std::vector<TensorType> infer_slice(const OpCall& call) {
  const Shape& sizes = call.attrs.get<Shape>("shape");
  check_window(call.in(0).shape, call.attrs.get<Shape>("starts"), sizes, call.attrs.get<Shape>("steps"));
  return {typed(call.in(0).dtype, sizes)};
}
std::vector<TensorType> infer_update_slice(const OpCall& call) {
  check_same_dtype(call);
  check_window(call.in(0).shape, call.attrs.get<Shape>("starts"), call.in(1).shape, call.attrs.get<Shape>("steps"));
  return {call.in(0)};
}

std::vector<TensorType> infer_pad(const OpCall& call) {
  const Shape& low = call.attrs.get<Shape>("low");
  const Shape& high = call.attrs.get<Shape>("high");
  Shape shape = call.in(0).shape;
  INTERNAL_CHECK(low.size() == shape.size() && high.size() == shape.size(), "pad needs two sizes a dimension");
  for (size_t d = 0; d < shape.size(); ++d) {
    INTERNAL_CHECK(low[d] >= 0 && high[d] >= 0, "pad by {} and {}", low[d], high[d]);
    shape[d] += low[d] + high[d];
  }
  return {typed(call.in(0).dtype, shape)};
}

std::vector<TensorType> infer_concat(const OpCall& call) {
  check_same_dtype(call);
  Shape shape = call.in(0).shape;
  const size_t dim = checked_dim(call.attrs.get<int64_t>("dim"), shape.size());
  for (size_t i = 1; i < call.inputs.size(); ++i) {
    INTERNAL_CHECK_EQ(call.in(i).shape.size(), shape.size(), "operand {}", i);
    for (size_t d = 0; d < shape.size(); ++d)
      if (d != dim) INTERNAL_CHECK_EQ(call.in(i).shape[d], shape[d], "operand {} dimension {}", i, d);
    shape[dim] += call.in(i).shape[dim];
  }
  return {typed(call.in(0).dtype, shape)};
}

std::vector<TensorType> infer_reverse(const OpCall& call) {
  for (int64_t dim : call.attrs.get<Shape>("dims")) checked_dim(dim, call.in(0).shape.size());
  return {call.in(0)};
}

void check_strided(const OpCall& call, const Shape& shape) {
  const Shape& strides = call.attrs.get<Shape>("strides");
  int64_t last = call.attrs.get<int64_t>("offset");
  INTERNAL_CHECK(last >= 0 && strides.size() == shape.size(), "a strided window needs a stride a dimension");
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 0) return;
    last += (shape[d] - 1) * strides[d];
  }
  INTERNAL_CHECK_LT(last, element_count(call.in(0).shape), "the strided window leaves its operand");
}
std::vector<TensorType> infer_as_strided(const OpCall& call) {
  const Shape& shape = call.attrs.get<Shape>("shape");
  check_strided(call, shape);
  return {typed(call.in(0).dtype, shape)};
}
std::vector<TensorType> infer_as_strided_scatter(const OpCall& call) {
  check_same_dtype(call);
  check_strided(call, call.in(1).shape);
  return {call.in(0)};
}

// The last dimension takes up the difference in size.
std::vector<TensorType> infer_bitcast(const OpCall& call) {
  const auto dtype = call.attrs.get<DType>("dtype");
  Shape shape = call.in(0).shape;
  const int64_t from = size_of(call.in(0).dtype);
  const int64_t to = size_of(dtype);
  if (from != to) {
    INTERNAL_CHECK(!shape.empty(), "a 0-dim tensor cannot take a dtype of another size");
    INTERNAL_CHECK_EQ(shape.back() * from % to, 0, "the last dimension does not divide");
    shape.back() = shape.back() * from / to;
  }
  return {typed(dtype, shape)};
}

ShardingRule shard_transpose(const OpCall& call, const std::vector<TensorType>& results) {
  ShardingRule rule = ShardingRule::whole(call.inputs, results);
  const Shape& permutation = call.attrs.get<Shape>("permutation");
  for (size_t d = 0; d < permutation.size(); ++d) {
    if (results[0].shape[d] <= 1) continue;
    const int factor = rule.add(results[0].shape[d]);
    rule.on_operand(factor, 0, static_cast<size_t>(permutation[d]));
    rule.on_result(factor, 0, d);
  }
  return rule;
}

// The dimension that `large` and `small` share: all of it, or `small` is one of the equal blocks of `large`, which lie
// whole behind one another and begin at `start`. `on_large` and `on_small` put a factor there.
template <class Large, class Small>
void share_blocks(ShardingRule& rule, int64_t large, int64_t small, int64_t start, Large&& on_large, Small&& on_small) {
  if (small <= 1 || large % small != 0 || start % small != 0) return;
  if (large != small) on_large(rule.add(large / small, Factor::Kind::kWhole));
  const int factor = rule.add(small);
  on_large(factor);
  on_small(factor);
}

ShardingRule shard_slice(const OpCall& call, const std::vector<TensorType>& results) {
  ShardingRule rule = ShardingRule::whole(call.inputs, results);
  const Shape& steps = call.attrs.get<Shape>("steps");
  for (size_t d = 0; d < results[0].shape.size(); ++d) {
    if (steps[d] != 1) continue;
    share_blocks(
        rule, call.in(0).shape[d], results[0].shape[d], call.attrs.get<Shape>("starts")[d],
        [&](int factor) { rule.on_operand(factor, 0, d); }, [&](int factor) { rule.on_result(factor, 0, d); });
  }
  return rule;
}
ShardingRule shard_update_slice(const OpCall& call, const std::vector<TensorType>& results) {
  ShardingRule rule = ShardingRule::whole(call.inputs, results);
  const Shape& steps = call.attrs.get<Shape>("steps");
  for (size_t d = 0; d < results[0].shape.size(); ++d) {
    if (steps[d] != 1) continue;
    const auto on_whole = [&](int factor) {
      rule.on_operand(factor, 0, d);
      rule.on_result(factor, 0, d);
    };
    share_blocks(rule, call.in(0).shape[d], call.in(1).shape[d], call.attrs.get<Shape>("starts")[d], on_whole,
                 [&](int factor) { rule.on_operand(factor, 1, d); });
  }
  return rule;
}
ShardingRule shard_pad(const OpCall& call, const std::vector<TensorType>& results) {
  ShardingRule rule = ShardingRule::whole(call.inputs, results);
  for (size_t d = 0; d < results[0].shape.size(); ++d)
    share_blocks(
        rule, results[0].shape[d], call.in(0).shape[d], call.attrs.get<Shape>("low")[d],
        [&](int factor) { rule.on_result(factor, 0, d); }, [&](int factor) { rule.on_operand(factor, 0, d); });
  return rule;
}
ShardingRule shard_concat(const OpCall& call, const std::vector<TensorType>& results) {
  ShardingRule rule = ShardingRule::whole(call.inputs, results);
  const size_t dim = checked_dim(call.attrs.get<int64_t>("dim"), results[0].shape.size());
  for (size_t d = 0; d < results[0].shape.size(); ++d) {
    const int64_t size = call.in(0).shape[d];
    bool same = true;
    for (const TensorType& operand : call.inputs) same = same && operand.shape[d] == size;
    if (!same || size <= 1) continue;
    if (d == dim && call.inputs.size() > 1)
      rule.on_result(rule.add(static_cast<int64_t>(call.inputs.size()), Factor::Kind::kWhole), 0, d);
    const int factor = rule.add(size);
    for (size_t i = 0; i < call.inputs.size(); ++i) rule.on_operand(factor, i, d);
    rule.on_result(factor, 0, d);
  }
  return rule;
}
ShardingRule shard_reverse(const OpCall& call, const std::vector<TensorType>& results) {
  return same_dims_rule(call.inputs, results, call.attrs.get<Shape>("dims"));
}

// Places along the dimensions of `whole`, as they are along those of `local`: multiples of its blocks.
Shape local_places(Shape places, const Shape& whole, const Shape& local) {
  for (size_t d = 0; d < places.size(); ++d)
    if (whole[d] != 0) places[d] = places[d] * local[d] / whole[d];
  return places;
}
Attrs local_slice(const OpCall& call, const std::vector<Shape>& operands, const std::vector<Shape>& results) {
  Attrs attrs = call.attrs;
  attrs.set("starts", local_places(call.attrs.get<Shape>("starts"), call.in(0).shape, operands[0]));
  attrs.set("shape", results[0]);
  return attrs;
}
Attrs local_update_slice(const OpCall& call, const std::vector<Shape>& operands, const std::vector<Shape>&) {
  Attrs attrs = call.attrs;
  attrs.set("starts", local_places(call.attrs.get<Shape>("starts"), call.in(0).shape, operands[0]));
  return attrs;
}
Attrs local_pad(const OpCall& call, const std::vector<Shape>& operands, const std::vector<Shape>&) {
  Attrs attrs = call.attrs;
  for (std::string_view side : {"low", "high"})
    attrs.set(side, local_places(call.attrs.get<Shape>(side), call.in(0).shape, operands[0]));
  return attrs;
}

ShardingRule shard_expand(const OpCall& call, const std::vector<TensorType>& results) {
  return elementwise_rule(call.inputs, results);
}
ShardingRule shard_reshape(const OpCall& call, const std::vector<TensorType>& results) {
  return reshape_rule(call.in(0), results[0]);
}

constexpr auto kViewTrait = static_cast<uint32_t>(Trait::kView);
OpDef with(OpDef row, LocalAttrsFn local_attrs) {
  row.local_attrs = local_attrs;
  return row;
}
const AttrDef kShapeAttrDef{"shape", AttrKind::kInts, {}};

}  // namespace

OpFamily view_ops() {
  const AttrDef starts{"starts", AttrKind::kInts, {}};
  const AttrDef steps{"steps", AttrKind::kInts, {}};
  const AttrDef strides{"strides", AttrKind::kInts, {}};
  const AttrDef offset{"offset", AttrKind::kInt, AttrValue(int64_t{0})};
  return {"view",
          "The operand's elements in another arrangement.",
          {
              {"reshape",
               "same elements in the same order",
               1,
               1,
               1,
               {kShapeAttrDef},
               kViewTrait | Trait::kShapeAttr | Trait::kSameBytes | Trait::kLinear,
               infer_reshape,
               shard_reshape},
              {"transpose",
               "result dimension d is the operand's permutation[d]",
               1,
               1,
               1,
               {{"permutation", AttrKind::kInts, {}}},
               kViewTrait | Trait::kLinear,
               infer_transpose,
               shard_transpose},
              {"expand",
               "repeats along new dimensions and those of size 1",
               1,
               1,
               1,
               {kShapeAttrDef},
               kViewTrait | Trait::kShapeAttr | Trait::kBroadcast | Trait::kLinear,
               infer_expand,
               shard_expand},
              with({"slice",
                    "a window: start, size and step a dimension",
                    1,
                    1,
                    1,
                    {starts, kShapeAttrDef, steps},
                    kViewTrait | Trait::kShapeAttr | Trait::kLinear,
                    infer_slice,
                    shard_slice},
                   local_slice),
              with({"update_slice",
                    "the first operand with its window replaced by the second",
                    2,
                    2,
                    1,
                    {starts, steps},
                    Trait::kLinear | Trait::kOverwrites,
                    infer_update_slice,
                    shard_update_slice},
                   local_update_slice),
              with({"pad",
                    "zeros before and after",
                    1,
                    1,
                    1,
                    {{"low", AttrKind::kInts, {}}, {"high", AttrKind::kInts, {}}},
                    static_cast<uint32_t>(Trait::kLinear),
                    infer_pad,
                    shard_pad},
                   local_pad),
              {"concat",
               "operands one after another along dim",
               1,
               kMany,
               1,
               {{"dim", AttrKind::kInt, {}}},
               static_cast<uint32_t>(Trait::kLinear),
               infer_concat,
               shard_concat},
              {"reverse",
               "dims run backwards",
               1,
               1,
               1,
               {{"dims", AttrKind::kInts, {}}},
               kViewTrait | Trait::kLinear,
               infer_reverse,
               shard_reverse},
              {"as_strided",
               "any window on the operand's elements in order; what no better view says",
               1,
               1,
               1,
               {kShapeAttrDef, strides, offset},
               kViewTrait,
               infer_as_strided,
               nullptr},
              {"as_strided_scatter",
               "the first operand with such a window replaced by the second; where the window meets itself the last "
               "element stays",
               2,
               2,
               1,
               {strides, offset},
               0 | Trait::kOverwrites,
               infer_as_strided_scatter,
               nullptr},
              {"bitcast",
               "the same bytes as another dtype; the last dimension takes up the difference in size",
               1,
               1,
               1,
               {{"dtype", AttrKind::kDType, {}}},
               kViewTrait | Trait::kSameBytes,
               infer_bitcast,
               nullptr},
          }};
}

}  // namespace stepc
