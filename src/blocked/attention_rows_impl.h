// The attention part of row_kernels_impl.h: the online softmax of a block of scores, and the gradient of one.
#pragma once

#include <algorithm>
#include <cmath>

#include "blocked/packing_impl.h"
#include "blocked/row_kernels.h"
#include "blocked/vector_impl.h"

namespace stepc::blocked {
namespace {

// Weights are rounded to their type, so a bf16 weight needs fewer terms.
template <class T>
inline constexpr int kExpTerms = sizeof(T) == sizeof(float) ? 5 : 3;

template <class T>
inline void fill_zero(T* row, int64_t from, int64_t to) {
  if (from < to) std::memset(static_cast<void*>(row + from), 0, static_cast<size_t>(to - from) * sizeof(T));
}

inline float top_of(const float* row, int64_t from, int64_t to) {
  Vec top = splat(-INFINITY);
  Vec other = top;
  int64_t j = from;
  for (; j + 2 * kLanes <= to; j += 2 * kLanes) {
    top = max(top, load(row + j));
    other = max(other, load(row + j + kLanes));
  }
  if (j < to) top = max(top, load(row + j));
  return max_of(max(top, other));
}

// weights = exp2((row - top) * factor) in [from, to); returns their sum.
template <class T>
inline float exponentials(const float* row, int64_t from, int64_t to, float top, float factor, T* weights) {
  const Vec tops = splat(top);
  const Vec factors = splat(factor);
  Vec sum{};
  Vec other{};
  int64_t j = from;
  for (; j + 2 * kLanes <= to; j += 2 * kLanes) {
    const Vec low = exp2_negative<kExpTerms<T>>((load(row + j) - tops) * factors);
    const Vec high = exp2_negative<kExpTerms<T>>((load(row + j + kLanes) - tops) * factors);
    sum += low;
    other += high;
    store_two(weights + j, low, high);
  }
  if (j < to) {
    const Vec last = exp2_negative<kExpTerms<T>>((load(row + j) - tops) * factors);
    sum += last;
    store(weights + j, last);
  }
  return sum_of(sum + other);
}

// The vectors of a row that hold visible columns; what is hidden in them becomes -inf.
struct RowSpan {
  int64_t from, to;
};
inline RowSpan visible_span(const SoftmaxTile& tile, int64_t i) {
  const int64_t begin = std::clamp<int64_t>(tile.begin[i] - tile.first_key, 0, tile.columns);
  const int64_t end = std::clamp<int64_t>(tile.end[i] - tile.first_key, 0, tile.columns);
  if (begin >= end) return {0, 0};
  float* row = tile.scores + i * tile.ld;
  const RowSpan span{begin / kLanes * kLanes, round_up(end, kLanes)};
  for (int64_t j = span.from; j < begin; ++j) row[j] = -INFINITY;
  for (int64_t j = end; j < span.to; ++j) row[j] = -INFINITY;
  return span;
}

// Row i of the tile, whose maximum with what came before is `top`.
template <class T>
inline void softmax_row(const SoftmaxTile& tile, int64_t i, const RowSpan& span, float top) {
  T* weights = static_cast<T*>(tile.weights) + i * tile.ld_weights;
  fill_zero(weights, 0, span.from);
  fill_zero(weights, span.to, tile.columns);
  if (span.from == span.to) return;
  // A row of nothing but -inf has no weight; its NaNs, if any, still come through.
  const float sum =
      exponentials(tile.scores + i * tile.ld, span.from, span.to, top == -INFINITY ? 0.0F : top, tile.factor, weights);
  if (!tile.first && tile.top[i] != top && tile.top[i] != -INFINITY) {
    const float factor = std::exp2((tile.top[i] - top) * tile.factor);
    tile.sum[i] *= factor;
    float* total = tile.total + i * tile.ld_total;
    for (int64_t d = 0; d < tile.total_columns; d += kLanes) store(total + d, load(total + d) * splat(factor));
  }
  tile.top[i] = top;
  tile.sum[i] += sum;
}

// Some rows at a time, so that the reductions at the end of each do not wait for one another.
template <class T>
void softmax(const SoftmaxTile& tile) {
  constexpr int64_t kRows = 4;
  for (int64_t i = 0; i < tile.rows; i += kRows) {
    const int64_t count = std::min(kRows, tile.rows - i);
    RowSpan spans[kRows];
    float tops[kRows];
    for (int64_t r = 0; r < count; ++r) {
      spans[r] = visible_span(tile, i + r);
      tops[r] = std::max(tile.top[i + r], top_of(tile.scores + (i + r) * tile.ld, spans[r].from, spans[r].to));
    }
    for (int64_t r = 0; r < count; ++r) softmax_row<T>(tile, i + r, spans[r], tops[r]);
  }
}

// Row `key` of the tile: weights and score gradients of one key for all queries.
template <class T>
inline void gradient_row(const GradientTile& tile, int64_t key) {
  const float* scores = tile.scores + key * tile.ld;
  const float* incoming = tile.weight_gradients + key * tile.ld;
  T* weights = static_cast<T*>(tile.weights) + key * tile.ld;
  T* gradients = static_cast<T*>(tile.score_gradients) + key * tile.ld;
  const Vec factor = splat(tile.factor);
  const Vec scale = splat(tile.scale);
  const VecInt index = VecInt{} + (tile.first_key + static_cast<int32_t>(key));
  const auto weight_at = [&](int64_t q) {
    // No weight is above 1; of scores so large that they are rounded by more than they differ, one may seem to be.
    const Vec power = (load(scores + q) - load(tile.logsumexp + q)) * factor;
    const Vec weight = exp2_negative<kExpTerms<T>>(min(splat(0.0F), power));
    if (!tile.masked) return weight;
    return select_range(weight, index, load_bytes<VecInt>(tile.begin + q), load_bytes<VecInt>(tile.end + q));
  };
  const auto gradient_at = [&](int64_t q, Vec weight) {
    return weight * scale * (load(incoming + q) - load(tile.delta + q));
  };
  int64_t j = 0;
  for (; j + 2 * kLanes <= tile.columns; j += 2 * kLanes) {
    const Vec low = weight_at(j), high = weight_at(j + kLanes);
    store_two(weights + j, low, high);
    store_two(gradients + j, gradient_at(j, low), gradient_at(j + kLanes, high));
  }
  if constexpr (sizeof(T) == sizeof(float)) {  // others have columns in pairs of vectors
    if (j == tile.columns) return;
    const Vec weight = weight_at(j);
    store(weights + j, weight);
    store(gradients + j, gradient_at(j, weight));
  }
}

template <class T>
void attention_gradient(const GradientTile& tile) {
  T* gradients = static_cast<T*>(tile.score_gradients);
  T* pairs = static_cast<T*>(tile.score_gradient_pairs);
  for (int64_t key = 0; key < tile.rows; key += 2) {
    gradient_row<T>(tile, key);
    gradient_row<T>(tile, key + 1);
    if constexpr (sizeof(T) == sizeof(float)) continue;
    make_pairs({2, tile.columns, tile.ld, 2, tile.columns, tile.ld}, gradients + key * tile.ld, pairs + key * tile.ld);
  }
}

}  // namespace
}  // namespace stepc::blocked
