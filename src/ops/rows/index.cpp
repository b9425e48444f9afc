// Elements chosen by integer tensors. Negative indices do not occur in a Graph.
#include "base/check.h"
#include "ops/rows/families.h"
#include "ops/rules/shape_rules.h"

namespace stepc {

namespace {

void check_index(const TensorType& index) {
  INTERNAL_CHECK(index.dtype == DType::kI64 || index.dtype == DType::kI32, "an index is {}", name_of(index.dtype));
}
size_t dim_of(const OpCall& call) { return checked_dim(call.attrs.get<int64_t>("dim"), call.in(0).shape.size()); }

std::vector<TensorType> infer_gather(const OpCall& call) {
  check_index(call.in(1));
  const size_t dim = dim_of(call);
  INTERNAL_CHECK_EQ(call.in(0).shape.size(), call.in(1).shape.size(), "dimensions");
  for (size_t d = 0; d < call.in(0).shape.size(); ++d)
    if (d != dim) INTERNAL_CHECK_LE(call.in(1).shape[d], call.in(0).shape[d], "dimension {}", d);
  return {typed(call.in(0).dtype, call.in(1).shape)};
}
std::vector<TensorType> infer_scatter(const OpCall& call) {
  infer_gather(call);
  INTERNAL_CHECK(call.in(2) == typed(call.in(0).dtype, call.in(1).shape), "values are {}", to_text(call.in(2)));
  return {call.in(0)};
}

// x's shape with dimension dim replaced by the whole shape of the index
Shape taken_shape(const OpCall& call) {
  check_index(call.in(1));
  const size_t dim = dim_of(call);
  Shape shape = call.in(0).shape;
  shape.erase(shape.begin() + static_cast<ptrdiff_t>(dim));
  shape.insert(shape.begin() + static_cast<ptrdiff_t>(dim), call.in(1).shape.begin(), call.in(1).shape.end());
  return shape;
}
std::vector<TensorType> infer_take(const OpCall& call) { return {typed(call.in(0).dtype, taken_shape(call))}; }
std::vector<TensorType> infer_put(const OpCall& call) {
  INTERNAL_CHECK(call.in(2) == typed(call.in(0).dtype, taken_shape(call)), "values are {}", to_text(call.in(2)));
  return {call.in(0)};
}
std::vector<TensorType> infer_sort(const OpCall& call) {
  dim_of(call);
  return {call.in(0), typed(DType::kI64, call.in(0).shape)};
}

// Dimensions that all tensors have alike, but `dim`.
ShardingRule shard_along(const OpCall& call, const std::vector<TensorType>& results) {
  ShardingRule rule = ShardingRule::whole(call.inputs, results);
  const size_t dim = dim_of(call);
  for (size_t d = 0; d < call.in(0).shape.size(); ++d) {
    bool same = d != dim;
    for (const TensorType& type : call.inputs) same = same && type.shape[d] == call.in(0).shape[d];
    if (!same) continue;
    const int factor = rule.add(call.in(0).shape[d]);
    for (size_t i = 0; i < call.inputs.size(); ++i) rule.on_operand(factor, i, d);
    for (size_t r = 0; r < results.size(); ++r) rule.on_result(factor, r, d);
  }
  return rule;
}

// A read of x along dim: each rank gives what it holds, and the sum is all of it.
void add_indexed_read(ShardingRule& rule, const OpCall& call) {
  const size_t dim = dim_of(call);
  const int factor = rule.add(call.in(0).shape[dim], Factor::Kind::kSum);
  rule.on_operand(factor, 0, dim);
  rule.indexed = {.factor = factor, .indices = 1};
}
// An addition into x along dim: each rank adds to what it holds.
void add_indexed_write(ShardingRule& rule, const OpCall& call) {
  const size_t dim = dim_of(call);
  const int factor = rule.add(call.in(0).shape[dim]);
  rule.on_operand(factor, 0, dim);
  rule.on_result(factor, 0, dim);
  rule.indexed = {.factor = factor, .indices = 1, .values = 2};
}
// Dimension d of the index and its place in the values: what each part adds, added up; x counts once.
void add_summed(ShardingRule& rule, const OpCall& call, size_t d, size_t in_values) {
  const int factor = rule.add(call.in(1).shape[d], Factor::Kind::kSum);
  rule.on_operand(factor, 1, d);
  rule.on_operand(factor, 2, in_values);
  rule.once = 0;
}
ShardingRule shard_gather(const OpCall& call, const std::vector<TensorType>& results) {
  ShardingRule rule = shard_along(call, results);
  const size_t dim = dim_of(call);
  const int along = rule.add(call.in(1).shape[dim]);
  rule.on_operand(along, 1, dim);
  rule.on_result(along, 0, dim);
  add_indexed_read(rule, call);
  return rule;
}
ShardingRule shard_scatter_add(const OpCall& call, const std::vector<TensorType>& results) {
  ShardingRule rule = shard_along(call, results);
  const size_t dim = dim_of(call);
  add_summed(rule, call, dim, dim);
  add_indexed_write(rule, call);
  return rule;
}

// take: x (a..., n, b...), index (i...) -> (a..., i..., b...)
ShardingRule shard_take(const OpCall& call, const std::vector<TensorType>& results) {
  ShardingRule rule = ShardingRule::whole(call.inputs, results);
  const size_t dim = dim_of(call);
  const size_t index_rank = call.in(1).shape.size();
  for (size_t d = 0; d < call.in(0).shape.size(); ++d) {
    if (d == dim) continue;
    const int factor = rule.add(call.in(0).shape[d]);
    rule.on_operand(factor, 0, d);
    rule.on_result(factor, 0, d < dim ? d : d + index_rank - 1);
  }
  for (size_t d = 0; d < index_rank; ++d) {
    const int factor = rule.add(call.in(1).shape[d]);
    rule.on_operand(factor, 1, d);
    rule.on_result(factor, 0, dim + d);
  }
  add_indexed_read(rule, call);
  return rule;
}
ShardingRule shard_put(const OpCall& call, const std::vector<TensorType>& results) {
  ShardingRule rule = ShardingRule::whole(call.inputs, results);
  const size_t dim = dim_of(call);
  for (size_t d = 0; d < call.in(0).shape.size(); ++d) {
    if (d == dim) continue;
    const int factor = rule.add(call.in(0).shape[d]);
    rule.on_operand(factor, 0, d);
    rule.on_operand(factor, 2, d < dim ? d : d + call.in(1).shape.size() - 1);
    rule.on_result(factor, 0, d);
  }
  return rule;
}

ShardingRule shard_put_add(const OpCall& call, const std::vector<TensorType>& results) {
  ShardingRule rule = shard_put(call, results);
  for (size_t d = 0; d < call.in(1).shape.size(); ++d) add_summed(rule, call, d, dim_of(call) + d);
  add_indexed_write(rule, call);
  return rule;
}

double bytes_gather(const OpCall& call, const std::vector<TensorType>& results) {
  return static_cast<double>(2 * bytes_of(results[0]) + bytes_of(call.in(1)));
}
double flops_scatter(const OpCall& call, const std::vector<TensorType>&) { return count_of(call.in(2)); }
double flops_sort(const OpCall& call, const std::vector<TensorType>&) { return 20 * count_of(call.in(0)); }

}  // namespace

OpFamily index_ops() {
  const auto by_element = [](OpDef row) {
    row.index_use = IndexUse{.indices = 1, .indexed = 0, .slices = false};
    return row;
  };
  const auto by_slice = [](OpDef row) {
    row.index_use = IndexUse{.indices = 1, .indexed = 0, .slices = true};
    return row;
  };
  const auto selects = static_cast<uint32_t>(Trait::kSelects);
  const std::vector<AttrDef> dim = {{"dim", AttrKind::kInt, {}}};
  return {"index",
          "Elements chosen by integer tensors.",
          {
              by_element({"gather", "(x, index): result[i, j] = x[index[i, j], j] for dim 0", 2, 2, 1, dim, selects,
                          infer_gather, shard_gather, nullptr, bytes_gather}),
              by_element({"scatter", "(x, index, values): x with x[index[i, j], j] = values[i, j]; the last one stays",
                          3, 3, 1, dim, 0 | Trait::kOverwrites, infer_scatter, shard_along}),
              by_element({"scatter_add", "(x, index, values): x with x[index[i, j], j] += values[i, j]", 3, 3, 1, dim,
                          0 | Trait::kOverwrites, infer_scatter, shard_scatter_add, flops_scatter}),
              by_slice({"take", "(x, index): whole slices along dim; the index's shape takes the place of dim", 2, 2, 1,
                        dim, selects, infer_take, shard_take, nullptr, bytes_gather}),
              by_slice({"put", "(x, index, values): x with whole slices replaced; the last one stays", 3, 3, 1, dim,
                        0 | Trait::kOverwrites, infer_put, shard_put}),
              by_slice({"put_add", "(x, index, values): x with whole slices added to", 3, 3, 1, dim, 0, infer_put,
                        shard_put_add, flops_scatter}),
              {"sort",
               "values and where they were, along dim; equal ones keep their order, NaN is largest",
               1,
               1,
               2,
               {{"dim", AttrKind::kInt, {}}, {"descending", AttrKind::kBool, AttrValue(false)}},
               0,
               infer_sort,
               shard_along,
               flops_sort},
          }};
}

}  // namespace stepc
