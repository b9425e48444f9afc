// Which keys a query sees, and what is added to its scores. Internal to blocked/.
#pragma once

#include <cstdint>

#include "blocked/attention.h"

namespace stepc::blocked {

// Checks sizes and promises of `call`.
void check_attention(const Attention& call);

// Of its products, forward.
double attention_flops(const Attention& call);

// A head's elements as the micro-kernels take them: tiles of bf16 are 32 deep, but of narrow heads half of that would
// be padding, in every operand that is packed.
inline int64_t padded_dim(Number type, int64_t dim) {
  return round_up(dim, type == Number::kF32 || dim <= 16 ? 16 : 32);
}

// The blocks on the diagonal are computed whole, and half of each was asked for.
inline double padding_of_diagonal(const Attention& call, int64_t blocks) {
  const auto count = static_cast<double>(blocks < 1 ? 1 : blocks);
  return call.after == 0 ? (count + 1) / count : 1;
}

// Visible keys [begin, end) of `count` queries; what lies beyond the last query sees nothing.
void visible_keys(const Attention& call, int64_t query, int64_t count, int32_t* begin, int32_t* end);

// The keys that some query, and those that every query of a block sees.
struct KeyRange {
  int64_t some_begin, some_end;
  int64_t all_begin, all_end;
};
KeyRange range_of(const int32_t* begin, const int32_t* end, int64_t count);

// Without the keys at both ends that the mask hides from all of `count` queries: scores of -inf, whatever the keys are.
// `range` becomes no wider and goes in steps of `panel` from 0.
KeyRange without_hidden(const Attention& call, int64_t batch, int64_t head, int64_t query, int64_t count, int64_t panel,
                        KeyRange range);

// True where scores must be scaled and biased before the softmax, instead of being scaled inside it.
bool needs_bias(const Attention& call);

struct ScoreBlock {
  int64_t batch, head;
  int64_t query, queries;
  int64_t key, keys;
};
// scores = scale x scores + mask over a block, (queries, keys) or, transposed, (keys, queries).
void apply_bias(const Attention& call, const ScoreBlock& block, bool transposed, float* scores, int64_t ld);

// Offset of one head's first element.
inline int64_t head_offset(const HeadStrides& strides, int64_t batch, int64_t head) {
  return batch * strides.batch + head * strides.head;
}

}  // namespace stepc::blocked
