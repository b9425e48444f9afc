// Body of row_kernels_generic.cpp and row_kernels_avx512.cpp: see row_kernels.h. Only what is local to the including
// file may be called here, because these functions exist once for each instruction set.
#pragma once

#include <algorithm>
#include <cmath>

#include "blocked/attention_rows_impl.h"
#include "blocked/packing_impl.h"
#include "blocked/row_kernels.h"
#include "blocked/vector_impl.h"

namespace stepc::blocked {
namespace {

template <class T>
inline float element_of_b(const T* b, int64_t ldb, int64_t depth, int64_t column) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return b[depth * ldb + column];
  } else {
    return to_float(b[depth / 2 * 2 * ldb + 2 * column + depth % 2]);
  }
}

// Row `depth` of B, 16 columns.
inline Vec load_b(const float* b, int64_t ldb, int64_t depth, int64_t column) { return load(b + depth * ldb + column); }
inline Vec load_b(const Bf16* b, int64_t ldb, int64_t depth, int64_t column) {
  const auto pair = load_bytes<VecInt>(b + depth / 2 * 2 * ldb + 2 * column);
  return reinterpret_cast<Vec>(depth % 2 == 0 ? pair << 16 : pair & static_cast<int32_t>(0xffff0000U));
}

template <class T>
void multiply(int64_t rows, int64_t columns, int64_t depth, const T* a, int64_t lda, const T* b, int64_t ldb, float* c,
              int64_t ldc, bool accumulate) {
  constexpr int64_t kRows = 4;
  for (int64_t j = 0; j + kLanes <= columns; j += kLanes) {
    for (int64_t i = 0; i < rows; i += kRows) {
      const int64_t count = std::min(kRows, rows - i);
      Vec sum[kRows] = {};
      for (int64_t k = 0; k < depth; ++k) {
        const Vec right = load_b(b, ldb, k, j);
        for (int64_t r = 0; r < count; ++r) sum[r] += splat(to_float(a[(i + r) * lda + k])) * right;
      }
      for (int64_t r = 0; r < count; ++r) {
        float* to = c + (i + r) * ldc + j;
        store(to, accumulate ? load(to) + sum[r] : sum[r]);
      }
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = columns / kLanes * kLanes; j < columns; ++j) {
      float sum = accumulate ? c[i * ldc + j] : 0.0F;
      for (int64_t k = 0; k < depth; ++k) sum += to_float(a[i * lda + k]) * element_of_b(b, ldb, k, j);
      c[i * ldc + j] = sum;
    }
  }
}

template <class T>
void exp_tile(const ExpTile& tile) {
  const Vec log2e = splat(1.4426950408889634F);
  for_lanes(tile.columns, [&](int64_t j, int64_t count) {
    Vec top = splat(-INFINITY);
    Vec logit_sum{};
    for (int64_t i = 0; i < tile.rows; ++i) {
      const Vec logit = load_some(tile.logits + i * tile.ld + j, count);
      top = max(top, logit);
      logit_sum += logit;
    }
    top = max(splat(-3.4e38F), top);  // nothing but -inf: no weight
    Vec sum{};
    for (int64_t i = 0; i < tile.rows; ++i) {
      const Vec logit = load_some(tile.logits + i * tile.ld + j, count);
      const Vec weight = exp2_negative<5>((logit - top) * log2e);
      sum += weight;
      store_some(static_cast<T*>(tile.weights) + i * tile.ld_weights + j, weight, count);
    }
    store_some(tile.top + j, top, count);
    store_some(tile.sum + j, sum, count);
    store_some(tile.logit_sum + j, logit_sum, count);
  });
}

template <class T>
void store_scaled(const float* values, int64_t ld, int64_t rows, int64_t columns, const float* factor, T* out,
                  int64_t ld_out) {
  for (int64_t i = 0; i < rows; ++i) {
    const Vec by = splat(factor[i]);
    for_lanes(columns, [&](int64_t j, int64_t count) {
      store_some(out + i * ld_out + j, load_some(values + i * ld + j, count) * by, count);
    });
  }
}

template <class T>
void add(float* values, int64_t ld, int64_t rows, int64_t columns, const T* x, int64_t ld_x) {
  for (int64_t i = 0; i < rows; ++i) {
    for_lanes(columns, [&](int64_t j, int64_t count) {
      float* to = values + i * ld + j;
      store_some(to, load_some(to, count) + load_some(x + i * ld_x + j, count), count);
    });
  }
}

template <class T>
void dot_rows(const T* a, int64_t ld_a, const T* b, int64_t ld_b, int64_t rows, int64_t columns, float* result) {
  for (int64_t i = 0; i < rows; ++i) {
    Vec sum{};
    for_lanes(columns, [&](int64_t j, int64_t count) {
      sum += load_some(a + i * ld_a + j, count) * load_some(b + i * ld_b + j, count);
    });
    result[i] = sum_of(sum);
  }
}

template <class T>
void scale_columns(T* values, int64_t ld, int64_t rows, int64_t columns, const float* factor, const float* subtract) {
  for (int64_t i = 0; i < rows; ++i) {
    for_lanes(columns, [&](int64_t j, int64_t count) {
      T* at = values + i * ld + j;
      store_some(at, load_some(at, count) * load_some(factor + j, count) - load_some(subtract + j, count), count);
    });
  }
}

template <class T>
void store_tile(const float* values, int64_t ld, int64_t rows, int64_t columns, T* out, int64_t ld_out) {
  for (int64_t i = 0; i < rows; ++i) {
    const float* from = values + i * ld;
    T* to = out + i * ld_out;
    int64_t j = 0;
    for (; j + 2 * kLanes <= columns; j += 2 * kLanes) store_two(to + j, load(from + j), load(from + j + kLanes));
    for_lanes(columns - j,
              [&](int64_t k, int64_t count) { store_some(to + j + k, load_some(from + j + k, count), count); });
  }
}

template <class T>
RowKernels<T> row_kernels() {
  RowKernels<T> rows{};
  rows.multiply = multiply<T>;
  rows.copy_rows = copy_rows<T>;
  rows.pairs = [](const Copy& copy, const T* in, T* out) { make_pairs(copy, in, out); };
  rows.transpose = [](const Copy& copy, const T* in, T* out) { transpose(copy, in, out); };
  rows.transpose_pairs = [](const Copy& copy, const T* in, T* out) { transpose_to_pairs(copy, in, out); };
  rows.softmax = softmax<T>;
  rows.attention_gradient = attention_gradient<T>;
  rows.exp_tile = exp_tile<T>;
  rows.store_scaled = store_scaled<T>;
  rows.add = add<T>;
  rows.dot_rows = dot_rows<T>;
  rows.scale_columns = scale_columns<T>;
  rows.store = store_tile<T>;
  return rows;
}

RowTable row_table() { return {row_kernels<float>(), row_kernels<Bf16>()}; }

}  // namespace
}  // namespace stepc::blocked
