#include "models/attention.h"

#include <cmath>
#include <tuple>

#include "base/module_scope.h"
#include "models/family.h"

namespace stepc::models {
namespace {

at::Tensor rotate_half(const at::Tensor& x, bool interleaved) {
  if (interleaved) {
    const at::Tensor pairs = x.unflatten(-1, {-1, 2});
    return at::stack({-pairs.select(-1, 1), pairs.select(-1, 0)}, -1).flatten(-2);
  }
  const int64_t half = x.size(-1) / 2;
  return at::cat({-x.slice(-1, half), x.slice(-1, 0, half)}, -1);
}

at::Tensor rotated(const at::Tensor& x, const Places& places, bool interleaved) {
  const int64_t width = places.cosine.size(-1);
  const bool whole = width == x.size(-1);
  const at::Tensor turning = whole ? x : x.slice(-1, 0, width);
  at::Tensor rotated = turning * places.cosine + rotate_half(turning, interleaved) * places.sine;
  rotated = rotated.to(x.scalar_type());
  return whole ? rotated : at::cat({rotated, x.slice(-1, width)}, -1);
}

// (batch, kv_heads, seq, dim) -> (batch, heads, seq, dim)
at::Tensor repeated(const at::Tensor& x, int64_t heads) {
  if (x.size(1) == heads) return x;
  const int64_t copies = heads / x.size(1);
  return x.unsqueeze(2).expand({x.size(0), x.size(1), copies, x.size(2), x.size(3)}).flatten(1, 2);
}
}  // namespace

Attention::Attention(const DecoderConfig& config, int64_t layer, at::TensorOptions options)
    : config_(config),
      slides_(config.slides(layer)),
      scale_(1.0 / std::sqrt(config.query_scalar.value_or(static_cast<double>(config.head_dim)))) {
  const WeightNames& names = family_of(config.model_type).names;
  name_ = names.attention;
  interleaved_query_key_value_ = names.interleaved_query_key_value;
  const int64_t hidden = config.hidden_size;
  const int64_t query = config.num_attention_heads * config.head_dim;
  const int64_t key = config.num_key_value_heads * config.head_dim;
  const auto linear = [&](std::string_view name, int64_t in, int64_t out, bool bias) {
    const Linear::Shape shape = {in, out, bias, names.transposed};
    return register_module(std::string(name), std::make_shared<Linear>(name, shape, options));
  };
  if (!names.query_key_value.empty()) {
    query_key_value_ = linear(names.query_key_value, hidden, query + 2 * key, config.query_key_value_bias);
  } else {
    query_ = linear(names.query, hidden, query, config.query_key_value_bias);
    key_ = linear(names.key, hidden, key, config.query_key_value_bias);
    value_ = linear(names.value, hidden, key, config.query_key_value_bias);
  }
  output_ = linear(names.attention_output, query, hidden, config.attention_output_bias);
  if (names.query_norm.empty()) return;
  const auto norm = [&](std::string_view name, int64_t width) {
    return register_module(std::string(name), std::make_shared<Normalization>(name, width, config, options));
  };
  query_norm_ = norm(names.query_norm, config.norm_per_head ? config.head_dim : query);
  key_norm_ = norm(names.key_norm, config.norm_per_head ? config.head_dim : key);
}

std::vector<at::Tensor> Attention::query_key_value(const at::Tensor& x) {
  const int64_t batch = x.size(0);
  const int64_t seq = x.size(1);
  const int64_t dim = config_.head_dim;
  if (interleaved_query_key_value_) {
    const at::Tensor fused = query_key_value_->forward(x).view({batch, seq, -1, 3, dim});
    std::vector<at::Tensor> parts;
    for (int64_t i = 0; i < 3; ++i) parts.push_back(fused.select(3, i).transpose(1, 2));
    return parts;
  }
  const bool whole_norm = query_norm_ && !config_.norm_per_head;
  std::vector<at::Tensor> parts;
  if (query_key_value_) {
    const int64_t query = config_.num_attention_heads * dim;
    const int64_t key = config_.num_key_value_heads * dim;
    parts = query_key_value_->forward(x).split_with_sizes({query, key, key}, -1);
  } else {
    const at::Tensor q = query_->forward(x);
    const at::Tensor k = key_->forward(x);
    parts = {whole_norm ? query_norm_->forward(q) : q, whole_norm ? key_norm_->forward(k) : k, value_->forward(x)};
  }
  for (at::Tensor& part : parts) {
    if (config_.clip_qkv) part = part.clamp(-*config_.clip_qkv, *config_.clip_qkv);
    part = part.view({batch, seq, -1, dim});
  }
  if (query_norm_ && !whole_norm) {
    parts[0] = query_norm_->forward(parts[0]);
    parts[1] = key_norm_->forward(parts[1]);
  }
  for (at::Tensor& part : parts) part = part.transpose(1, 2);
  return parts;
}

at::Tensor Attention::attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask,
                             bool causal) {
  const int64_t seq = q.size(2);
  const double dropout = is_training() ? config_.attention_dropout : 0.0;
  if (!config_.attention_softcap) {
    const std::optional<at::Tensor> given = mask.defined() ? std::optional(mask) : std::nullopt;
    return at::scaled_dot_product_attention(q, k, v, given, dropout, /*is_causal=*/!given && causal, scale_);
  }
  const double cap = *config_.attention_softcap;
  at::Tensor scores = at::matmul(q, k.transpose(2, 3)) * scale_;
  scores = at::tanh(scores / cap) * cap;
  if (mask.defined() || causal) {
    const at::Tensor seen = mask.defined() ? mask : at::ones({seq, seq}, q.options().dtype(at::kBool)).tril();
    scores = scores.masked_fill(seen.logical_not(), -INFINITY);
  }
  at::Tensor weights = scores.softmax(-1, wide_type(scores.scalar_type())).to(q.scalar_type());
  if (dropout > 0.0) weights = at::dropout(weights, dropout, /*train=*/true);
  return at::matmul(weights, v);
}

// One query that sees all keys needs no copies of grouped ones: the heads of a group are as many queries of its keys.
at::Tensor Attention::attend_all(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const at::Tensor& mask) {
  const at::Tensor grouped = q.reshape({q.size(0), k.size(1), -1, q.size(3)});
  return attend(grouped, k, v, mask, /*causal=*/false).reshape(q.sizes());
}

at::Tensor Attention::forward(const at::Tensor& x, const Places& places, LayerCache* cache) {
  const ModuleScope scope(name_);
  std::vector<at::Tensor> parts = query_key_value(x);
  if (config_.positions == Positions::kRotary) {
    parts[0] = rotated(parts[0], places, config_.rotary.interleaved);
    parts[1] = rotated(parts[1], places, config_.rotary.interleaved);
  }
  if (cache) std::tie(parts[1], parts[2]) = cache->extend(parts[1], parts[2]);
  // Grouped heads are repeated here: the CPU's flash kernels know no groups, and asking for them means the slow way.
  const int64_t heads = config_.num_attention_heads;
  const at::Tensor& mask = slides_ ? places.sliding_mask : places.mask;
  const int64_t seq = x.size(1);
  const at::Tensor mixed = cache && seq == 1
                               ? attend_all(parts[0], parts[1], parts[2], mask)
                               : attend(parts[0], repeated(parts[1], heads), repeated(parts[2], heads), mask, seq > 1);
  return output_->forward(mixed.transpose(1, 2).contiguous().view({x.size(0), x.size(1), -1}));
}

}  // namespace stepc::models
