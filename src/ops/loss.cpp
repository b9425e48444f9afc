// Losses over classes: logp (rows, classes) or the like, targets (rows) with one value that is ignored.
#include "base/check.h"
#include "ops/families.h"
#include "ops/graph_builder.h"
#include "ops/shape_rules.h"

namespace stepc {

namespace {

using Ids = std::vector<TensorId>;

void check_rows(const TensorType& rows, const TensorType& target) {
  INTERNAL_CHECK(rows.shape.size() == 2 && target.shape == Shape{rows.shape[0]} && target.dtype == DType::kI64,
                 "a loss of {} and targets {}", to_text(rows), to_text(target));
}

std::vector<TensorType> infer_nll_loss(const OpCall& call) {
  check_rows(call.in(0), call.in(1));
  return {typed(call.in(0).dtype, call.in(1).shape), typed(DType::kBool, call.in(1).shape)};
}
std::vector<TensorType> infer_nll_loss_backward(const OpCall& call) {
  const int64_t classes = call.attrs.get<int64_t>("classes");
  INTERNAL_CHECK(call.in(0).shape == call.in(1).shape && call.in(1).shape.size() == 1, "gradients are {}",
                 to_text(call.in(0)));
  return {typed(call.in(0).dtype, {call.in(1).shape[0], classes})};
}

ShardingRule shard_rows(const OpCall& call, const std::vector<TensorType>& results) {
  ShardingRule rule = ShardingRule::whole(call.inputs, results);
  const int rows = rule.add(call.in(0).shape[0]);
  for (size_t i = 0; i < call.inputs.size(); ++i) rule.on_operand(rows, i, 0);
  for (size_t r = 0; r < results.size(); ++r) rule.on_result(rows, r, 0);
  return rule;
}

// Targets as a column of valid indices, and which rows count.
std::pair<TensorId, TensorId> targets(GraphBuilder& b, TensorId target, const Attrs& attrs) {
  const TensorId ignored = b.full(static_cast<double>(attrs.get<int64_t>("ignore_index")), DType::kI64);
  const TensorId counts = b.add("ne", {target, ignored});
  const TensorId safe = b.add("where", {counts, target, b.full(0, DType::kI64)});
  return {b.reshape(safe, {b.shape(target)[0], 1}), counts};
}

Ids decompose_nll_loss(GraphBuilder& b, const Ids& in, const Attrs& attrs) {
  const auto [column, counts] = targets(b, in[1], attrs);
  const TensorId picked = b.reshape(b.add("gather", {in[0], column}, {{"dim", int64_t{1}}}), b.shape(in[1]));
  const TensorId zero = b.full(0, b.dtype(in[0]));
  return {b.add("where", {counts, b.add("neg", {picked}), zero}), counts};
}

Ids decompose_nll_loss_backward(GraphBuilder& b, const Ids& in, const Attrs& attrs) {
  const auto [column, counts] = targets(b, in[1], attrs);
  const Shape shape = {b.shape(in[1])[0], attrs.get<int64_t>("classes")};
  const TensorId classes = b.add("iota", {}, {{"shape", shape}, {"dtype", DType::kI64}, {"dim", int64_t{1}}});
  const TensorId counted = b.reshape(counts, {shape[0], 1});
  const TensorId hit = b.add("logical_and", {b.add("eq", {classes, column}), counted});
  const TensorId gradient = b.reshape(b.add("neg", {in[0]}), {shape[0], 1});
  return {b.add("where", {hit, gradient, b.full(0, b.dtype(in[0]))})};
}

double flops_rows(const OpCall&, const std::vector<TensorType>& results) { return count_of(results[0]); }

}  // namespace

OpFamily loss_ops() {
  const auto composite = static_cast<uint32_t>(Trait::kComposite);
  const AttrDef ignore{"ignore_index", AttrKind::kInt, AttrValue(int64_t{-100})};
  return {"loss",
          "Losses over classes, a row each; means and sums are reductions after them.",
          {
              {"nll_loss",
               "(logp, target): -logp[i, target[i]], 0 where ignored, and which rows count",
               2,
               2,
               2,
               {ignore},
               composite,
               infer_nll_loss,
               shard_rows,
               flops_rows,
               nullptr,
               decompose_nll_loss},
              {"nll_loss_backward",
               "(gradient a row, target): the gradient of logp",
               2,
               2,
               1,
               {ignore, {"classes", AttrKind::kInt, {}}},
               composite,
               infer_nll_loss_backward,
               shard_rows,
               flops_rows,
               nullptr,
               decompose_nll_loss_backward},
          }};
}

}  // namespace stepc
