// The blocked attention on operands that lie so.
#include <algorithm>

#include "ir/alignment.h"
#include "kernels/kernel_choice.h"
#include "ops/attention_operands.h"

namespace stepc {

namespace {

bool has_dense_heads(const TensorLayout& x) { return x.strides[3] == 1 || x.type.shape[3] == 1; }

// Broadcast to (batch, heads, queries, keys).
std::optional<blocked::AttentionMask> mask_of(const TensorLayout& mask) {
  blocked::AttentionMask out;
  if (mask.type.dtype == DType::kBool)
    out.kind = blocked::AttentionMask::Kind::kBool;
  else if (mask.type.dtype == DType::kF32)
    out.kind = blocked::AttentionMask::Kind::kF32;
  else if (mask.type.dtype == DType::kBF16)
    out.kind = blocked::AttentionMask::Kind::kBf16;
  else
    return std::nullopt;
  const Shape& shape = mask.type.shape;
  if (shape.size() > 4) return std::nullopt;
  const size_t missing = 4 - shape.size();
  const auto stride = [&](size_t d) { return d < missing || shape[d - missing] == 1 ? 0 : mask.strides[d - missing]; };
  out.batch_stride = stride(0);
  out.head_stride = stride(1);
  out.query_stride = stride(2);
  out.key_stride = stride(3);
  return out;
}

// Documents and places, by queries and keys.
std::optional<blocked::AttentionMask> documents_of(std::span<const TensorLayout> numbers) {
  blocked::AttentionMask out;
  out.kind = blocked::AttentionMask::Kind::kDocuments;
  out.documents.has_places = numbers.size() > 2;
  blocked::TokenNumbers* const to[] = {&out.documents.of_queries, &out.documents.of_keys, &out.documents.query_places,
                                       &out.documents.key_places};
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i].type.dtype != DType::kI64) return std::nullopt;
    const auto stride = [&](size_t d) { return numbers[i].type.shape[d] == 1 ? 0 : numbers[i].strides[d]; };
    to[i]->batch_stride = stride(0);
    to[i]->stride = stride(1);
  }
  return out;
}

}  // namespace

std::optional<BoundAttention> bind_attention(std::string_view op, const Attrs& attrs,
                                             std::span<const TensorLayout> inputs) {
  BoundAttention bound;
  const AttentionPlaces places = attention_places(op);
  bound.backward = places.is_backward;
  const size_t first = places.q;  // of q, k and v
  const size_t mask_place = places.mask;
  const std::optional<blocked::Number> type = number_of(inputs[first].type.dtype);
  if (!type) return std::nullopt;
  const Shape& q = inputs[first].type.shape;
  const Shape& k = inputs[first + 1].type.shape;
  const Shape& v = inputs[first + 2].type.shape;

  blocked::Attention& call = bound.call;
  call.type = *type;
  call.batch = q[0];
  call.heads = q[1];
  call.key_heads = k[1];
  call.queries = q[2];
  call.keys = k[2];
  call.dim = q[3];
  call.value_dim = v[3];
  if (call.dim == 0 || call.value_dim == 0) return std::nullopt;
  call.scale = static_cast<float>(attrs.get<double>("scale"));
  if (attrs.get<bool>("causal")) call.after = 0;
  if (inputs.size() > mask_place) {
    const std::optional<blocked::AttentionMask> mask =
        places.has_documents(inputs.size()) ? documents_of(inputs.subspan(mask_place)) : mask_of(inputs[mask_place]);
    if (!mask) return std::nullopt;
    call.mask = *mask;
  }

  for (size_t i = 0; i < mask_place && i < inputs.size(); ++i) {
    const bool is_read = inputs[i].type.shape.size() == 4 ? has_dense_heads(inputs[i]) : is_contiguous(inputs[i]);
    if (!is_read) bound.copied.push_back(static_cast<uint32_t>(i));
  }
  const auto strides = [&](size_t i) -> blocked::HeadStrides {
    const bool copied = std::ranges::find(bound.copied, i) != bound.copied.end();
    const Shape at = copied ? contiguous_strides(inputs[i].type.shape) : inputs[i].strides;
    return {at[0], at[1], at[2]};
  };
  call.q.strides = strides(first);
  call.k.strides = strides(first + 1);
  call.v.strides = strides(first + 2);
  return bound;
}

uint64_t workspace_bytes(const BoundAttention& bound, int threads) {
  return aligned(bound.backward ? blocked::backward_workspace_bytes(bound.call, threads)
                                : blocked::workspace_bytes(bound.call, threads));
}

}  // namespace stepc
