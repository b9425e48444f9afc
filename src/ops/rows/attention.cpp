// Attention over (batch, heads, sequence, head size). Fewer key and value heads than query heads: each serves a group.
// The optional mask is added to the scores and broadcasts to (batch, heads, queries, keys); documents may stand in its
// place (ops/attention_operands.h).
#include <cmath>

#include "base/check.h"
#include "ops/attention_operands.h"
#include "ops/causal_mask.h"
#include "ops/graph_builder.h"
#include "ops/rows/families.h"
#include "ops/rules/shape_rules.h"

namespace stepc {

namespace {

using Ids = std::vector<TensorId>;

constexpr AttentionPlaces kForward{false, 0, 3}, kBackward{true, 1, 6};

// Documents and places come in pairs, a number a query and a number a key.
void check_documents(const OpCall& call, const AttentionPlaces& at) {
  const size_t operands = call.inputs.size();
  if (!at.has_documents(operands)) return;
  INTERNAL_CHECK(operands == at.mask + 2 || operands == at.mask + 4, "documents or places lack their other half");
  const int64_t batch = call.in(at.q).shape[0];
  for (size_t i = at.mask; i < operands; ++i) {
    const bool is_of_queries = (i - at.mask) % 2 == 0;
    const int64_t tokens = call.in(is_of_queries ? at.q : at.q + 1).shape[2];
    const Shape& shape = call.in(i).shape;
    INTERNAL_CHECK(shape.size() == 2 && (shape[0] == batch || shape[0] == 1) && shape[1] == tokens,
                   "documents or places [{}] of {} rows of {} {}", fmt::join(shape, ", "), batch, tokens,
                   is_of_queries ? "queries" : "keys");
  }
}

void check_operands(const OpCall& call, const AttentionPlaces& at) {
  const size_t q = at.q;
  const Shape& query = call.in(q).shape;
  const Shape& key = call.in(q + 1).shape;
  const Shape& value = call.in(q + 2).shape;
  INTERNAL_CHECK(query.size() == 4 && key.size() == 4 && value.size() == 4, "attention takes 4 dimensions");
  INTERNAL_CHECK(query[0] == key[0] && query[3] == key[3] && key[0] == value[0] && key[1] == value[1] &&
                     key[2] == value[2] && key[1] > 0 && query[1] % key[1] == 0,
                 "attention of [{}], [{}] and [{}]", fmt::join(query, ", "), fmt::join(key, ", "),
                 fmt::join(value, ", "));
  check_documents(call, at);
}

std::vector<TensorType> infer_attention(const OpCall& call) {
  check_operands(call, kForward);
  const Shape& query = call.in(0).shape;
  return {typed(call.in(0).dtype, {query[0], query[1], query[2], call.in(2).shape[3]}),
          typed(wide(call.in(0).dtype), {query[0], query[1], query[2]})};
}
std::vector<TensorType> infer_attention_backward(const OpCall& call) {
  check_operands(call, kBackward);
  return {call.in(1), call.in(2), call.in(3)};
}

// How batch, heads and queries are split. `queries`: the operands that have them. Each key head serves a group of query
// heads, next to each other. What splits groups or queries leaves the gradients of keys and values as sums.
ShardingRule shard_any_attention(const OpCall& call, const std::vector<TensorType>& results, const AttentionPlaces& at,
                                 const std::vector<size_t>& queries, const std::vector<size_t>& query_results,
                                 const std::vector<size_t>& key_results, Factor::Kind of_queries) {
  ShardingRule rule = ShardingRule::whole(call.inputs, results);
  const size_t operands = call.inputs.size();
  const Shape& query = call.in(at.q).shape;
  const int64_t key_heads = call.in(at.q + 1).shape[1];
  // Dimension `to` of the documents and places of queries, or of keys, where it is dimension `d` of the queries.
  const auto on_documents = [&](int factor, size_t first, size_t d, size_t to) {
    if (!at.has_documents(operands)) return;
    for (size_t i = at.mask + first; i < operands; i += 2)
      if (call.in(i).shape[to] == query[d]) rule.on_operand(factor, i, to);
  };
  const auto on_queries = [&](int factor, size_t d) {
    for (size_t i : queries) rule.on_operand(factor, i, d);
    for (size_t r : query_results) rule.on_result(factor, r, d);
    if (d != 1) on_documents(factor, 0, d, d == 0 ? 0 : 1);
    if (!at.has_mask(operands)) return;
    const Shape& shape = call.in(at.mask).shape;
    if (shape.size() + d >= 4 && shape[shape.size() + d - 4] == query[d])
      rule.on_operand(factor, at.mask, shape.size() + d - 4);
  };
  const auto on_keys = [&](int factor, size_t d) {
    for (size_t i : {at.q + 1, at.q + 2}) rule.on_operand(factor, i, d);
    for (size_t r : key_results) rule.on_result(factor, r, d);
    if (d == 0) on_documents(factor, 1, 0, 0);
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
  return shard_any_attention(call, results, kForward, {0}, {0, 1}, {}, Factor::Kind::kParallel);
}
ShardingRule shard_attention_backward(const OpCall& call, const std::vector<TensorType>& results) {
  return shard_any_attention(call, results, kBackward, {0, 1, 4, 5}, {0}, {1, 2}, Factor::Kind::kSum);
}

// The keys that a query sees; of documents as if a row were one, which takes longest.
double keys_seen(const OpCall& call, const AttentionPlaces& at) {
  const bool sees_half = call.attrs.get<bool>("causal") || at.has_places(call.inputs.size());
  return static_cast<double>(call.in(at.q + 1).shape[2]) * (sees_half ? 0.5 : 1.0);
}
double flops_attention(const OpCall& call, const std::vector<TensorType>& results) {
  return 4 * count_of(results[0]) * keys_seen(call, kForward);
}
double flops_attention_backward(const OpCall& call, const std::vector<TensorType>& results) {
  return 10 * count_of(results[0]) * keys_seen(call, kBackward);
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

// Of documents and perhaps places: (batch or 1, 1, queries, keys), whether a query sees a key.
TensorId seen_of(GraphBuilder& b, const Ids& in, const AttentionPlaces& at) {
  const auto along = [&](size_t operand, bool of_queries) {
    const Shape shape = b.shape(in[operand]);
    return b.reshape(in[operand], of_queries ? Shape{shape[0], 1, shape[1], 1} : Shape{shape[0], 1, 1, shape[1]});
  };
  const TensorId same = b.add("eq", {along(at.mask, true), along(at.mask + 1, false)});
  if (!at.has_places(in.size())) return same;
  return b.add("logical_and", {same, b.add("le", {along(at.mask + 3, false), along(at.mask + 2, true)})});
}

TensorId masked_scores(GraphBuilder& b, TensorId q, TensorId k, const Ids& in, const AttentionPlaces& at,
                       const Attrs& attrs) {
  const DType acc = b.dtype(q);
  TensorId scores = b.add("matmul", {q, k}, {{"transpose_b", true}});
  scores = b.add("mul", {scores, b.full(attrs.get<double>("scale"), acc)});
  if (at.has_mask(in.size())) scores = b.add("add", {scores, b.cast(in[at.mask], acc)});
  if (at.has_documents(in.size())) scores = b.add("where", {seen_of(b, in, at), scores, b.full(-INFINITY, acc)});
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
  const TensorId scores = masked_scores(b, q, k, in, kForward, attrs);
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
  const TensorId scores = masked_scores(b, q, k, in, kBackward, attrs);
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
               "(q, k, v[, mask or documents]) to the result and the log of each row's sum of exponentials",
               3,
               7,
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
               "(gradient, q, k, v, result, logsumexp[, mask or documents]) to the gradients of q, k and v",
               6,
               10,
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

bool attends(std::string_view op) {
  const OpDef* row = find_op(op);
  return row != nullptr && (row->kernel == OwnKernel::kAttention || row->kernel == OwnKernel::kAttentionBackward);
}

AttentionPlaces attention_places(std::string_view op) {
  return op_def(op).kernel == OwnKernel::kAttentionBackward ? kBackward : kForward;
}

std::optional<std::vector<TensorId>> with_causal_mask(GraphBuilder& b, const Node& node, std::vector<TensorId> inputs) {
  if (!attends(node) || !node.attrs.get<bool>("causal")) return std::nullopt;
  const AttentionPlaces at = attention_places(node);
  const Shape shape = {1, 1, b.shape(inputs[at.q])[2], b.shape(inputs[at.q + 1])[2]};
  const auto positions = [&](int64_t dim) {
    return b.add("iota", {}, {{"shape", shape}, {"dtype", DType::kI64}, {"dim", dim}});
  };
  const auto number = [&](double value) { return b.full(value, DType::kF32); };
  TensorId seen = b.add("le", {positions(3), positions(2)});
  if (at.has_documents(inputs.size())) {
    seen = b.add("logical_and", {seen_of(b, inputs, at), seen});
    inputs.resize(at.mask);
  }
  TensorId made = b.add("where", {seen, number(0), number(-INFINITY)});
  if (at.has_mask(inputs.size()))
    inputs[at.mask] = b.add("add", {b.cast(inputs[at.mask], DType::kF32), made});
  else
    inputs.push_back(made);
  Attrs attrs = node.attrs;
  attrs.set("causal", false);
  return b.add_all(node.op, inputs, attrs);
}

}  // namespace stepc
