#include "interp/virtual_ranks.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/check.h"
#include "interp/evaluate.h"

namespace stepc {

namespace {

// The dimension that has the factor as its major one.
std::optional<size_t> dim_of(const ShardingRule::Dims& dims, int factor) {
  for (size_t d = 0; d < dims.size(); ++d)
    if (!dims[d].empty() && dims[d][0] == factor) return d;
  return std::nullopt;
}

TensorType part_of(TensorType type, const ShardingRule::Dims& dims, int factor, int64_t ranks) {
  if (const auto d = dim_of(dims, factor)) type.shape[*d] /= ranks;
  return type;
}

// Elements [rank * part, (rank + 1) * part) of a dimension, read from or written to the whole.
template <class F>
void for_each_of_shard(const TensorType& part, size_t d, const Shape& whole, int64_t rank, F&& f) {
  const Shape strides = contiguous_strides(whole);
  const int64_t start = rank * part.shape[d] * strides[d];
  for_each_index(part.shape, [&](const Shape& index, int64_t i) { f(start + dot(index, strides), i); });
}

void combine(Array& sum, const Array& part, Factor::Kind kind) {
  for (int64_t i = 0; i < sum.count(); ++i) {
    if (kind == Factor::Kind::kSum) {
      if (sum.is_real())
        sum.set(i, sum.real(i) + part.real(i));
      else
        sum.set(i, sum.integer(i) + part.integer(i));
    } else if (sum.is_real()) {
      const bool larger = part.real(i) > sum.real(i) || std::isnan(part.real(i));
      const bool smaller = part.real(i) < sum.real(i) || std::isnan(part.real(i));
      if (kind == Factor::Kind::kMax ? larger : smaller) sum.set(i, part.real(i));
    } else {
      const int64_t a = sum.integer(i);
      const int64_t b = part.integer(i);
      sum.set(i, kind == Factor::Kind::kMax ? std::max(a, b) : std::min(a, b));
    }
  }
}

}  // namespace

bool can_split(const ShardingRule& rule, int factor, int64_t ranks) {
  if (rule.factors[static_cast<size_t>(factor)].size % ranks != 0) return false;
  for (const auto* tensors : {&rule.operands, &rule.results})
    for (const ShardingRule::Dims& dims : *tensors)
      for (const std::vector<int>& factors : dims)
        if (std::ranges::find(factors, factor) != factors.end() && factors[0] != factor) return false;
  return true;
}

Array shard_of(const Array& whole, const ShardingRule::Dims& dims, int factor, int64_t rank, int64_t ranks) {
  const auto d = dim_of(dims, factor);
  if (!d) return whole;
  Array part(part_of(whole.type, dims, factor, ranks));
  for_each_of_shard(part.type, *d, whole.type.shape, rank,
                    [&](int64_t from, int64_t to) { copy_element(part, to, whole, from); });
  return part;
}

std::vector<Array> evaluate_sharded(const OpDef& op, const std::vector<Array>& inputs, const Attrs& attrs, int factor,
                                    int64_t ranks) {
  OpCall call;
  for (const Array& input : inputs) call.inputs.push_back(input.type);
  call.attrs = attrs;
  const std::vector<TensorType> types = infer_types(op, call);
  const ShardingRule rule = op.sharding(call, types);
  INTERNAL_CHECK(can_split(rule, factor, ranks), "{}: factor {} in {} parts", op.name, factor, ranks);
  Attrs local = attrs;
  if (op.has(Trait::kShapeAttr)) local.set("shape", part_of(types[0], rule.results[0], factor, ranks).shape);

  std::vector<Array> out;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    std::vector<Array> shards;
    for (size_t i = 0; i < inputs.size(); ++i)
      shards.push_back(shard_of(inputs[i], rule.operands[i], factor, rank, ranks));
    std::vector<Array> results = evaluate(op, shards, local);
    for (size_t r = 0; r < results.size(); ++r) {
      const auto d = dim_of(rule.results[r], factor);
      if (rank == 0) out.push_back(d ? Array(types[r]) : results[r]);
      if (d)
        for_each_of_shard(results[r].type, *d, types[r].shape, rank,
                          [&](int64_t to, int64_t from) { copy_element(out[r], to, results[r], from); });
      else if (rank > 0 && rule.factors[static_cast<size_t>(factor)].kind != Factor::Kind::kParallel)
        combine(out[r], results[r], rule.factors[static_cast<size_t>(factor)].kind);
    }
  }
  return out;
}

}  // namespace stepc
