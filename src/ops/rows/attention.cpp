// Attention over (batch, heads, sequence, head size). Fewer key and value heads than query heads: each serves a group.
// The optional mask is added to the scores and broadcasts to (batch, heads, queries, keys).
#include <cmath>

#include "base/check.h"
#include "ops/causal_mask.h"
#include "ops/graph_builder.h"
#include "ops/rows/families.h"
#include "ops/rules/shape_rules.h"

namespace stepc {

namespace {

using Ids = std::vector<TensorId>;

void check_heads(const OpCall& call, size_t q) {
  const Shape& query = call.in(q).shape;
  const Shape& key = call.in(q + 1).shape;
  const Shape& value = call.in(q + 2).shape;
  INTERNAL_CHECK(query.size() == 4 && key.size() == 4 && value.size() == 4, "attention takes 4 dimensions");
  INTERNAL_CHECK(query[0] == key[0] && query[3] == key[3] && key[0] == value[0] && key[1] == value[1] &&
                     key[2] == value[2] && key[1] > 0 && query[1] % key[1] == 0,
                 "attention of [{}], [{}] and [{}]", fmt::join(query, ", "), fmt::join(key, ", "),
                 fmt::join(value, ", "));
}

std::vector<TensorType> infer_attention(const OpCall& call) {
  check_heads(call, 0);
  const Shape& query = call.in(0).shape;
  return {typed(call.in(0).dtype, {query[0], query[1], query[2], call.in(2).shape[3]}),
          typed(wide(call.in(0).dtype), {query[0], query[1], query[2]})};
}
std::vector<TensorType> infer_attention_backward(const OpCall& call) {
  check_heads(call, 1);
  return {call.in(1), call.in(2), call.in(3)};
}

// How batch, heads and queries are split. `queries`: the operands that have them, of which `q` is one; behind it stand
// keys and values; `mask`: its place, were it there. Each key head serves a group of query heads, next to each other.
// What splits groups or queries leaves the gradients of keys and values as sums.
struct AttentionOperands {
  std::vector<size_t> queries;
  size_t q, mask;
};
ShardingRule shard_any_attention(const OpCall& call, const std::vector<TensorType>& results,
                                 const AttentionOperands& operands, const std::vector<size_t>& query_results,
                                 const std::vector<size_t>& key_results, Factor::Kind of_queries) {
  ShardingRule rule = ShardingRule::whole(call.inputs, results);
  const Shape& query = call.in(operands.q).shape;
  const int64_t key_heads = call.in(operands.q + 1).shape[1];
  const auto on_queries = [&](int factor, size_t d) {
    for (size_t i : operands.queries) rule.on_operand(factor, i, d);
    for (size_t r : query_results) rule.on_result(factor, r, d);
    if (call.inputs.size() == operands.mask) return;
    const Shape& shape = call.in(operands.mask).shape;
    if (shape.size() + d >= 4 && shape[shape.size() + d - 4] == query[d])
      rule.on_operand(factor, operands.mask, shape.size() + d - 4);
  };
  const auto on_keys = [&](int factor, size_t d) {
    for (size_t i : {operands.q + 1, operands.q + 2}) rule.on_operand(factor, i, d);
    for (size_t r : key_results) rule.on_result(factor, r, d);
  };
  const int batch = rule.add(query[0]);
  on_queries(batch, 0);
  on_keys(batch, 0);
  const int heads = rule.add(key_heads);
  rule.heads = heads;
  on_queries(heads, 1);
  on_keys(heads, 1);
  if (query[1] != key_heads) on_queries(rule.add(query[1] / key_heads, of_queries), 1);
  // Which keys a query sees by its place is not known of a part of the queries.
  if (!call.attrs.get<bool>("causal")) on_queries(rule.add(query[2], of_queries), 2);
  return rule;
}
ShardingRule shard_attention(const OpCall& call, const std::vector<TensorType>& results) {
  return shard_any_attention(call, results, {.queries = {0}, .q = 0, .mask = 3}, {0, 1}, {}, Factor::Kind::kParallel);
}
ShardingRule shard_attention_backward(const OpCall& call, const std::vector<TensorType>& results) {
  return shard_any_attention(call, results, {.queries = {0, 1, 4, 5}, .q = 1, .mask = 6}, {0}, {1, 2},
                             Factor::Kind::kSum);
}

double flops_attention(const OpCall& call, const std::vector<TensorType>& results) {
  const double pairs = static_cast<double>(call.in(1).shape[2]) * (call.attrs.get<bool>("causal") ? 0.5 : 1.0);
  return 4 * count_of(results[0]) * pairs;
}
double flops_attention_backward(const OpCall& call, const std::vector<TensorType>& results) {
  const double pairs = static_cast<double>(call.in(2).shape[2]) * (call.attrs.get<bool>("causal") ? 0.5 : 1.0);
  return 10 * count_of(results[0]) * pairs;
}

// Key or value with one head a query head.
TensorId repeat_heads(GraphBuilder& b, TensorId x, int64_t heads) {
  const Shape s = b.shape(x);
  if (s[1] == heads) return x;
  const TensorId grouped = b.reshape(x, {s[0], s[1], 1, s[2], s[3]});
  return b.reshape(b.expand(grouped, {s[0], s[1], heads / s[1], s[2], s[3]}), {s[0], heads, s[2], s[3]});
}
// The other way round, for gradients.
TensorId sum_heads(GraphBuilder& b, TensorId x, int64_t heads) {
  const Shape s = b.shape(x);
  if (s[1] == heads) return x;
  return b.sum(b.reshape(x, {s[0], heads, s[1] / heads, s[2], s[3]}), {2});
}

TensorId masked_scores(GraphBuilder& b, TensorId q, TensorId k, const TensorId* mask, const Attrs& attrs) {
  const DType acc = b.dtype(q);
  TensorId scores = b.add("matmul", {q, k}, {{"transpose_b", true}});
  scores = b.add("mul", {scores, b.full(attrs.get<double>("scale"), acc)});
  if (mask != nullptr) scores = b.add("add", {scores, b.cast(*mask, acc)});
  if (!attrs.get<bool>("causal")) return scores;
  const Shape square = {b.shape(q)[2], b.shape(k)[2]};
  const auto positions = [&](int64_t dim) {
    return b.add("iota", {}, {{"shape", square}, {"dtype", DType::kI64}, {"dim", dim}});
  };
  const TensorId seen = b.add("le", {positions(1), positions(0)});
  return b.add("where", {seen, scores, b.full(-INFINITY, acc)});
}

Ids decompose_attention(GraphBuilder& b, const Ids& in, const Attrs& attrs) {
  const DType dtype = b.dtype(in[0]);
  const DType acc = wide(dtype);
  const int64_t heads = b.shape(in[0])[1];
  const TensorId q = b.cast(in[0], acc);
  const TensorId k = repeat_heads(b, b.cast(in[1], acc), heads);
  const TensorId v = repeat_heads(b, b.cast(in[2], acc), heads);
  const TensorId scores = masked_scores(b, q, k, in.size() > 3 ? &in[3] : nullptr, attrs);
  const TensorId top = b.add("max", {scores}, {{"dims", Shape{3}}, {"keepdim", true}});
  const TensorId weights = b.add("exp", {b.add("sub", {scores, top})});
  const TensorId sum = b.sum(weights, {3}, true);
  const TensorId out = b.add("div", {b.add("matmul", {weights, v}), sum});
  const TensorId lse = b.add("add", {b.add("log", {sum}), top});
  const Shape rows = {b.shape(q)[0], heads, b.shape(q)[2]};
  return {b.cast(out, dtype), b.reshape(lse, rows)};
}

Ids decompose_attention_backward(GraphBuilder& b, const Ids& in, const Attrs& attrs) {
  const DType acc = wide(b.dtype(in[1]));
  const int64_t heads = b.shape(in[1])[1];
  const int64_t key_heads = b.shape(in[2])[1];
  const TensorId gradient = b.cast(in[0], acc);
  const TensorId q = b.cast(in[1], acc);
  const TensorId k = repeat_heads(b, b.cast(in[2], acc), heads);
  const TensorId v = repeat_heads(b, b.cast(in[3], acc), heads);
  Shape column = b.shape(in[5]);
  column.push_back(1);
  const TensorId scores = masked_scores(b, q, k, in.size() > 6 ? &in[6] : nullptr, attrs);
  const TensorId weights = b.add("exp", {b.add("sub", {scores, b.cast(b.reshape(in[5], column), acc)})});
  const TensorId dv = b.add("matmul", {weights, gradient}, {{"transpose_a", true}});
  const TensorId dweights = b.add("matmul", {gradient, v}, {{"transpose_b", true}});
  const TensorId row = b.sum(b.add("mul", {gradient, b.cast(in[4], acc)}), {3}, true);
  const TensorId dscores =
      b.add("mul", {b.add("mul", {weights, b.add("sub", {dweights, row})}), b.full(attrs.get<double>("scale"), acc)});
  const TensorId dq = b.add("matmul", {dscores, k});
  const TensorId dk = b.add("matmul", {dscores, q}, {{"transpose_a", true}});
  return {b.cast(dq, b.dtype(in[1])), b.cast(sum_heads(b, dk, key_heads), b.dtype(in[2])),
          b.cast(sum_heads(b, dv, key_heads), b.dtype(in[3]))};
}

}  // namespace

OpFamily attention_ops() {
  const uint32_t traits = Trait::kComposite | Trait::kRecomputes;
  const std::vector<AttrDef> attrs = {{"scale", AttrKind::kReal, {}}, {"causal", AttrKind::kBool, {}}};
  return {"attention",
          "softmax(scale q k' + mask) v over (batch, heads, sequence, head size).",
          {
              {"attention",
               "(q, k, v[, mask]) to the result and the log of each row's sum of exponentials",
               3,
               4,
               2,
               attrs,
               traits,
               infer_attention,
               shard_attention,
               flops_attention,
               nullptr,
               decompose_attention,
               nullptr,
               {},
               OwnKernel::kAttention},
              {"attention_backward",
               "(gradient, q, k, v, result, logsumexp[, mask]) to the gradients of q, k and v",
               6,
               7,
               3,
               attrs,
               traits,
               infer_attention_backward,
               shard_attention_backward,
               flops_attention_backward,
               nullptr,
               decompose_attention_backward,
               nullptr,
               {},
               OwnKernel::kAttentionBackward},
          }};
}

std::optional<std::vector<TensorId>> with_causal_mask(GraphBuilder& b, const Node& node, std::vector<TensorId> inputs) {
  const OwnKernel kernel = node.aten ? OwnKernel::kNone : op_def(node.op).kernel;
  const bool is_backward = kernel == OwnKernel::kAttentionBackward;
  if ((kernel != OwnKernel::kAttention && !is_backward) || !node.attrs.get<bool>("causal")) return std::nullopt;
  const size_t q = is_backward ? 1 : 0;
  const size_t mask = is_backward ? 6 : 3;
  const Shape shape = {1, 1, b.shape(inputs[q])[2], b.shape(inputs[q + 1])[2]};
  const auto positions = [&](int64_t dim) {
    return b.add("iota", {}, {{"shape", shape}, {"dtype", DType::kI64}, {"dim", dim}});
  };
  const auto number = [&](double value) { return b.full(value, DType::kF32); };
  const TensorId seen = b.add("le", {positions(3), positions(2)});
  TensorId made = b.add("where", {seen, number(0), number(-INFINITY)});
  if (inputs.size() > mask)
    inputs[mask] = b.add("add", {b.cast(inputs[mask], DType::kF32), made});
  else
    inputs.push_back(made);
  Attrs attrs = node.attrs;
  attrs.set("causal", false);
  return b.add_all(node.op, inputs, attrs);
}

}  // namespace stepc
