// Losses over classes: logp (rows, classes) or the like, targets (rows) with one value that is ignored.
#include "base/check.h"
#include "ops/graph_builder.h"
#include "ops/rows/families.h"
#include "ops/rules/shape_rules.h"

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

// ---- linear_cross_entropy

TensorType none_like(const TensorType& type) {
  TensorType none = type;
  none.shape[0] = 0;
  return none;
}
bool has_gradients(const OpCall& call) { return call.inputs.size() > 3; }
bool has_weight_gradient(const OpCall& call) { return has_gradients(call) && !call.attrs.get<bool>("frozen"); }

std::vector<TensorType> infer_linear_cross_entropy(const OpCall& call) {
  const TensorType& hidden = call.in(0);
  const TensorType& weight = call.in(1);
  INTERNAL_CHECK(hidden.shape.size() == 2 && weight.shape.size() == 2 && hidden.shape[1] == weight.shape[1] &&
                     hidden.dtype == weight.dtype,
                 "logits of {} and {}", to_text(hidden), to_text(weight));
  check_rows(hidden, call.in(2));
  const TensorType row = typed(wide(hidden.dtype), call.in(2).shape);
  for (size_t i = 3; i < call.inputs.size(); ++i)
    INTERNAL_CHECK(call.in(i) == row, "gradients are {}", to_text(call.in(i)));
  const TensorType weight_gradient = typed(call.attrs.get<DType>("gradient_dtype"), weight.shape);
  return {row, row, has_gradients(call) ? hidden : none_like(hidden),
          has_weight_gradient(call) ? weight_gradient : none_like(weight_gradient)};
}

ShardingRule shard_linear_cross_entropy(const OpCall& call, const std::vector<TensorType>& results) {
  ShardingRule rule = ShardingRule::whole(call.inputs, results);
  // One kind a factor: what splits the tokens leaves the weight's gradient partial.
  const int tokens = rule.add(call.in(0).shape[0], Factor::Kind::kSum);
  for (size_t i = 0; i < call.inputs.size(); ++i)
    if (i != 1) rule.on_operand(tokens, i, 0);
  for (size_t r = 0; r < (has_gradients(call) ? 3U : 2U); ++r) rule.on_result(tokens, r, 0);
  return rule;
}

double flops_linear_cross_entropy(const OpCall& call, const std::vector<TensorType>&) {
  const double products = 1 + (has_gradients(call) ? 1 : 0) + (has_weight_gradient(call) ? 1 : 0);
  return products * 2 * count_of(call.in(0)) * static_cast<double>(call.in(1).shape[0]);
}

Ids decompose_linear_cross_entropy(GraphBuilder& b, const Ids& in, const Attrs& attrs) {
  const DType dtype = b.dtype(in[0]);
  const DType acc = wide(dtype);
  const Shape weight_shape = b.shape(in[1]);
  const TensorId hidden = b.cast(in[0], acc);
  const TensorId weight = b.cast(in[1], acc);
  const Attrs classes = {{"dim", int64_t{1}}};
  const Attrs ignored = {{"ignore_index", attrs.get<int64_t>("ignore_index")}};
  const TensorId logp = b.add("log_softmax", {b.add("matmul", {hidden, weight}, {{"transpose_b", true}})}, classes);
  const TensorId loss = b.add_all("nll_loss", {logp, in[2]}, ignored)[0];
  const TensorId logp_sum = b.sum(logp, {1});
  const auto none = [&](TensorId like, DType type) { return b.full(0, type, none_like(b.type(like)).shape); };
  const DType gradient_dtype = attrs.get<DType>("gradient_dtype");
  if (in.size() == 3) return {loss, logp_sum, none(in[0], dtype), none(in[1], gradient_dtype)};
  TensorId gradient = b.add("nll_loss_backward", {in[3], in[2]},
                            {{"ignore_index", attrs.get<int64_t>("ignore_index")}, {"classes", weight_shape[0]}});
  if (in.size() > 4) gradient = b.add("add", {gradient, b.reshape(in[4], {b.shape(in[4])[0], 1})});
  gradient = b.add("log_softmax_backward", {gradient, logp}, classes);
  const TensorId dh = b.cast(b.add("matmul", {gradient, weight}), dtype);
  if (attrs.get<bool>("frozen")) return {loss, logp_sum, dh, none(in[1], gradient_dtype)};
  const TensorId dw = b.add("matmul", {gradient, hidden}, {{"transpose_a", true}});
  return {loss, logp_sum, dh, b.cast(dw, gradient_dtype)};
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
              {"linear_cross_entropy",
               "(hidden, weight, target[, gradient of the loss[, of the sum]]): with logp the log_softmax of hidden "
               "weight', its nll_loss and its sum a row; with gradients those of hidden and, but where it is frozen, "
               "weight, else none (no rows)",
               3,
               5,
               4,
               {ignore, {"frozen", AttrKind::kBool, AttrValue(false)}, {"gradient_dtype", AttrKind::kDType, {}}},
               composite,
               infer_linear_cross_entropy,
               shard_linear_cross_entropy,
               flops_linear_cross_entropy,
               nullptr,
               decompose_linear_cross_entropy,
               nullptr,
               IndexUse{.indices = 2, .indexed = 1, .slices = true, .ignores = true},
               OwnKernel::kLinearCrossEntropy},
          }};
}

}  // namespace stepc
