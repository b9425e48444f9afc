#include <cmath>
#include <numbers>

#include "base/check.h"
#include "base/module_scope.h"
#include "models/attention.h"

namespace stepc::models {
namespace {

// Llama 3.1: long wavelengths are stretched, short ones kept, those between interpolated.
at::Tensor stretched(const at::Tensor& inv_freq, const Rotary& rotary) {
  const auto context = static_cast<double>(rotary.original_max_position_embeddings);
  const double longest = context / rotary.low_freq_factor;
  const double shortest = context / rotary.high_freq_factor;
  const at::Tensor wavelength = (2 * std::numbers::pi) * inv_freq.reciprocal();
  const at::Tensor slow = at::where(wavelength > longest, inv_freq / rotary.factor, inv_freq);
  const at::Tensor smooth =
      (wavelength.reciprocal() * context - rotary.low_freq_factor) / (rotary.high_freq_factor - rotary.low_freq_factor);
  const at::Tensor between = (1 - smooth) * slow / rotary.factor + smooth * slow;
  return at::where((wavelength >= shortest).logical_and(wavelength <= longest), between, slow);
}

// The base grows with the sequence once that is longer than what the model was trained on. A tensor: the length is not
// read back.
at::Tensor dynamic_base(const at::Tensor& positions, const DecoderConfig& config, int64_t rotated) {
  const Rotary& rotary = config.rotary;
  const auto trained = static_cast<double>(config.max_position_embeddings);
  const at::Tensor length = (positions.max() + 1).clamp_min(config.max_position_embeddings).to(at::kFloat);
  const auto dim = static_cast<double>(rotated);
  return rotary.theta * at::pow(rotary.factor * length / trained - (rotary.factor - 1), dim / (dim - 2));
}

// The tables are made anew in each forward: 2 x seq x head_dim numbers cost nothing beside a layer, and nothing has to
// be kept, cast or saved. In float32, whatever the model.
void add_rotation(Places& places, const DecoderConfig& config, const at::Tensor& hidden) {
  const ModuleScope scope("rotary_emb");
  const Rotary& rotary = config.rotary;
  const auto options = hidden.options().dtype(at::kFloat).requires_grad(false);
  const auto rotated = static_cast<int64_t>(static_cast<double>(config.head_dim) * rotary.fraction);
  const at::Tensor exponent = at::arange(0, rotated, 2, options) / rotated;
  const bool dynamic = rotary.scaling == Rotary::Scaling::kDynamic;
  at::Tensor inv_freq =
      (dynamic ? at::pow(dynamic_base(places.positions, config, rotated), exponent) : at::pow(rotary.theta, exponent))
          .reciprocal();
  if (rotary.scaling == Rotary::Scaling::kLinear) inv_freq = inv_freq / rotary.factor;
  if (rotary.scaling == Rotary::Scaling::kLlama3) inv_freq = stretched(inv_freq, rotary);
  const at::Tensor freqs = places.positions.to(at::kFloat).unsqueeze(-1) * inv_freq;  // (batch, seq, rotated / 2)
  const at::Tensor angles =
      (rotary.interleaved ? at::stack({freqs, freqs}, -1).flatten(-2) : at::cat({freqs, freqs}, -1)).unsqueeze(1);
  const at::ScalarType dtype = rotary.wide ? at::kFloat : hidden.scalar_type();
  places.cosine = angles.cos().to(dtype);
  places.sine = angles.sin().to(dtype);
}

// Powers of a base that depends on the number of heads, and where that is no power of two, every second one of the base
// for twice as many: https://arxiv.org/abs/2108.12409.
at::Tensor alibi_slopes(int64_t heads, const at::TensorOptions& options) {
  const double power = std::floor(std::log2(static_cast<double>(heads)));
  const auto whole = static_cast<int64_t>(std::exp2(power));
  const auto slopes = [&](double log2_heads, int64_t count, int64_t stride) {
    const double base = std::exp2(-std::exp2(3 - log2_heads));
    return at::pow(base, at::arange(1, 1 + count * stride, stride, options));
  };
  const at::Tensor first = slopes(power, whole, 1);
  return whole == heads ? first : at::cat({first, slopes(power + 1, heads - whole, 2)});
}

at::Tensor indices(int64_t seq, at::Device device, int64_t from = 0) {
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  return from == 0 ? at::arange(seq, options) : at::arange(from, from + seq, options);
}

// Where each token's document starts, (batch, seq).
at::Tensor starts_of(const at::Tensor& documents) {
  const int64_t seq = documents.size(1);
  const at::Tensor changes = documents.slice(1, 1).ne(documents.slice(1, 0, seq - 1));
  const at::Tensor begins = at::cat({at::zeros_like(documents.slice(1, 0, 1)), changes.to(at::kLong)}, 1);
  return std::get<0>((begins * indices(seq, documents.device())).cummax(1));
}

// (batch or 1, 1, seq, past + seq): whether the query of the row sees the key of the column.
at::Tensor visible(int64_t seq, int64_t past, std::optional<int64_t> window, const at::Tensor& starts,
                   at::Device device) {
  const at::Tensor keys = indices(past + seq, device);
  const at::Tensor queries = past == 0 ? keys : indices(seq, device, past);
  at::Tensor seen = keys.unsqueeze(0) <= queries.unsqueeze(1);
  if (window) seen = seen.logical_and(queries.unsqueeze(1) - keys.unsqueeze(0) < *window);
  seen = seen.unsqueeze(0).unsqueeze(0);
  return starts.defined() ? seen.logical_and((starts.unsqueeze(2) == starts.unsqueeze(1)).unsqueeze(1)) : seen;
}
}  // namespace

Places places(const DecoderConfig& config, int64_t seq, int64_t past, const at::Tensor& documents,
              const at::Tensor& hidden) {
  INTERNAL_CHECK(past == 0 || !documents.defined());
  Places places;
  const at::Tensor starts = documents.defined() ? starts_of(documents) : documents;
  const at::Tensor index = indices(seq, hidden.device(), past).unsqueeze(0);
  places.positions = starts.defined() ? index - starts : index;
  if (config.positions == Positions::kRotary) add_rotation(places, config, hidden);

  const bool alibi = config.positions == Positions::kAlibi;
  const bool needs_mask = documents.defined() || alibi || (past > 0 && seq > 1);
  if (needs_mask) places.mask = visible(seq, past, {}, starts, hidden.device());
  if (config.sliding_window && *config.sliding_window < past + seq)
    places.sliding_mask = visible(seq, past, config.sliding_window, starts, hidden.device());
  else
    places.sliding_mask = places.mask;
  if (alibi) {
    const ModuleScope scope("alibi");
    const auto options = hidden.options().dtype(at::kFloat).requires_grad(false);
    const at::Tensor slopes = alibi_slopes(config.num_attention_heads, options).view({1, -1, 1, 1});
    const at::Tensor keys = past == 0 ? places.positions : indices(past + seq, hidden.device()).unsqueeze(0);
    const at::Tensor bias = slopes * keys.to(at::kFloat).unsqueeze(1).unsqueeze(1);
    places.mask = bias.to(hidden.scalar_type()).masked_fill(places.mask.logical_not(), -INFINITY);
  }
  return places;
}

}  // namespace stepc::models
