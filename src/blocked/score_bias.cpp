#include "blocked/score_bias.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace stepc::blocked {

void check_attention(const Attention& call) {
  INTERNAL_CHECK(call.batch >= 0 && call.queries >= 0 && call.keys >= 0, "attention of {} x {} x {}", call.batch,
                 call.queries, call.keys);
  INTERNAL_CHECK(call.key_heads > 0 && call.heads % call.key_heads == 0, "{} heads over {} key heads", call.heads,
                 call.key_heads);
  INTERNAL_CHECK(call.dim > 0 && call.value_dim > 0, "head sizes {} and {}", call.dim, call.value_dim);
  INTERNAL_CHECK_LT(std::max(call.queries, call.keys), int64_t{1} << 30, "positions");
}

double attention_flops(const Attention& call) {
  return 2.0 * static_cast<double>(call.batch * call.heads) * static_cast<double>(call.queries) *
         static_cast<double>(call.keys) * static_cast<double>(call.dim + call.value_dim);
}

void visible_keys(const Attention& call, int64_t query, int64_t count, int32_t* begin, int32_t* end) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = query + i;
    int64_t first = 0;
    int64_t last = position < call.queries ? call.keys : 0;
    if (call.before >= 0) first = std::max(first, position - call.before);
    if (call.after >= 0) last = std::min(last, position + call.after + 1);
    begin[i] = static_cast<int32_t>(std::min(first, std::max<int64_t>(last, 0)));
    end[i] = static_cast<int32_t>(std::max<int64_t>(last, 0));
  }
}

KeyRange range_of(const int32_t* begin, const int32_t* end, int64_t count) {
  constexpr int64_t kFar = int64_t{1} << 40;
  KeyRange range{kFar, 0, 0, kFar};
  for (int64_t i = 0; i < count; ++i) {
    if (begin[i] < end[i]) {
      range.some_begin = std::min<int64_t>(range.some_begin, begin[i]);
      range.some_end = std::max<int64_t>(range.some_end, end[i]);
    }
    range.all_begin = std::max<int64_t>(range.all_begin, begin[i]);
    range.all_end = std::min<int64_t>(range.all_end, end[i]);
  }
  return range;
}

bool needs_bias(const Attention& call) { return call.mask.kind != AttentionMask::Kind::kNone || !(call.scale > 0); }

namespace {

// The bits in which an element of a mask differs from what hides a key.
uint32_t bits_unlike_hidden(uint8_t seen) { return seen; }
uint32_t bits_unlike_hidden(float value) { return std::bit_cast<uint32_t>(value) ^ 0xff800000U; }
uint32_t bits_unlike_hidden(Bf16 value) { return value.bits ^ 0xff80U; }

template <class T>
bool hides_all(const AttentionMask& mask, const ScoreBlock& block) {
  const T* data = static_cast<const T*>(mask.data) + block.batch * mask.batch_stride + block.head * mask.head_stride;
  const int64_t queries = mask.query_stride == 0 ? 1 : block.queries;
  const int64_t keys = mask.key_stride == 0 ? 1 : block.keys;
  for (int64_t i = 0; i < queries; ++i) {
    const T* row = data + (block.query + i) * mask.query_stride + block.key * mask.key_stride;
    uint32_t unlike = 0;
    if (mask.key_stride == 1) {  // vectors
      for (int64_t j = 0; j < keys; ++j) unlike |= bits_unlike_hidden(row[j]);
    } else {
      for (int64_t j = 0; j < keys; ++j) unlike |= bits_unlike_hidden(row[j * mask.key_stride]);
    }
    if (unlike != 0) return false;
  }
  return true;
}

// The least and the greatest number of some tokens.
struct NumberRange {
  int64_t least, most;
};
NumberRange number_range(const TokenNumbers& numbers, int64_t batch, int64_t first, int64_t count) {
  const int64_t* at = numbers.data + batch * numbers.batch_stride + first * numbers.stride;
  NumberRange range{*at, *at};
  for (int64_t i = 1; i < count; ++i) {
    range.least = std::min(range.least, at[i * numbers.stride]);
    range.most = std::max(range.most, at[i * numbers.stride]);
  }
  return range;
}

// Documents that the block's queries and keys cannot share, or keys that all lie behind its queries.
bool hides_all(const AttentionDocuments& documents, const ScoreBlock& block) {
  const auto of_queries = [&](const TokenNumbers& x) {
    return number_range(x, block.batch, block.query, block.queries);
  };
  const auto of_keys = [&](const TokenNumbers& x) { return number_range(x, block.batch, block.key, block.keys); };
  const NumberRange q = of_queries(documents.of_queries), k = of_keys(documents.of_keys);
  if (q.most < k.least || k.most < q.least) return true;
  return documents.has_places && of_keys(documents.key_places).least > of_queries(documents.query_places).most;
}

bool hides_all(const AttentionMask& mask, const ScoreBlock& block) {
  switch (mask.kind) {
    case AttentionMask::Kind::kNone:
      return false;
    case AttentionMask::Kind::kBool:
      return hides_all<uint8_t>(mask, block);
    case AttentionMask::Kind::kF32:
      return hides_all<float>(mask, block);
    case AttentionMask::Kind::kBf16:
      return hides_all<Bf16>(mask, block);
    case AttentionMask::Kind::kDocuments:
      return hides_all(mask.documents, block);
  }
  return false;
}

}  // namespace

KeyRange without_hidden(const Attention& call, int64_t batch, int64_t head, int64_t query, int64_t count, int64_t panel,
                        KeyRange range) {
  if (call.mask.kind == AttentionMask::Kind::kNone) return range;
  const auto is_hidden = [&](int64_t key) {
    return hides_all(call.mask, {batch, head, query, count, key, std::min(panel, call.keys - key)});
  };
  range.some_begin = range.some_begin / panel * panel;
  while (range.some_begin < range.some_end && is_hidden(range.some_begin)) range.some_begin += panel;
  while (range.some_begin < range.some_end) {
    const int64_t last = (range.some_end - 1) / panel * panel;
    if (!is_hidden(last)) break;
    range.some_end = last;
  }
  return range;
}

namespace {

// Calls body(score, query, key) for each score of the block, in the order of memory.
template <class Body>
void for_scores(const ScoreBlock& block, bool transposed, float* scores, int64_t ld, const Body& body) {
  const int64_t rows = transposed ? block.keys : block.queries;
  const int64_t columns = transposed ? block.queries : block.keys;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      body(scores[i * ld + j], block.query + (transposed ? j : i), block.key + (transposed ? i : j));
    }
  }
}

template <class T, class Bias>
void add_mask(const Attention& call, const ScoreBlock& block, bool transposed, float* scores, int64_t ld,
              const Bias& bias) {
  const AttentionMask& mask = call.mask;
  const T* data = static_cast<const T*>(mask.data) + block.batch * mask.batch_stride + block.head * mask.head_stride;
  for_scores(block, transposed, scores, ld, [&](float& score, int64_t query, int64_t key) {
    score = score * call.scale + bias(data[query * mask.query_stride + key * mask.key_stride]);
  });
}

// Keys beyond a query's own document are hidden, and those behind its place.
void hide_others(const Attention& call, const ScoreBlock& block, bool transposed, float* scores, int64_t ld) {
  const AttentionDocuments& documents = call.mask.documents;
  const auto of = [&](const TokenNumbers& numbers, int64_t token) {
    return numbers.data[block.batch * numbers.batch_stride + token * numbers.stride];
  };
  const auto hide = [&](const auto& sees) {
    for_scores(block, transposed, scores, ld, [&](float& score, int64_t query, int64_t key) {
      score = sees(query, key) ? score * call.scale : -INFINITY;
    });
  };
  const auto shares = [&](int64_t query, int64_t key) {
    return of(documents.of_queries, query) == of(documents.of_keys, key);
  };
  if (!documents.has_places) return hide(shares);
  hide([&](int64_t query, int64_t key) {
    return shares(query, key) && of(documents.key_places, key) <= of(documents.query_places, query);
  });
}

}  // namespace

void apply_bias(const Attention& call, const ScoreBlock& whole, bool transposed, float* scores, int64_t ld) {
  ScoreBlock block = whole;  // what the mask covers; the padding beyond is hidden anyway
  block.queries = std::min(block.queries, call.queries - block.query);
  block.keys = std::min(block.keys, call.keys - block.key);
  switch (call.mask.kind) {
    case AttentionMask::Kind::kNone:
      for_scores(block, transposed, scores, ld, [&](float& score, int64_t, int64_t) { score *= call.scale; });
      break;
    case AttentionMask::Kind::kBool:
      add_mask<uint8_t>(call, block, transposed, scores, ld, [](uint8_t seen) { return seen != 0 ? 0.0F : -INFINITY; });
      break;
    case AttentionMask::Kind::kF32:
      add_mask<float>(call, block, transposed, scores, ld, [](float value) { return value; });
      break;
    case AttentionMask::Kind::kBf16:
      add_mask<Bf16>(call, block, transposed, scores, ld, [](Bf16 value) { return to_float(value); });
      break;
    case AttentionMask::Kind::kDocuments:
      hide_others(call, block, transposed, scores, ld);
      break;
  }
}

}  // namespace stepc::blocked
