// The work on rows of a tile that is not a product of blocks: packing, softmax, epilogues. One source
// (row_kernels_impl.h) compiled twice, for AVX-512 and for any x86-64; the table is chosen at run time. Internal to
// blocked/. Loads and stores are unaligned; `ld` is the distance between rows in elements.
//
// Pairs: the micro-kernel's order of a bf16 right operand. Rows 2r and 2r + 1 lie interleaved: (rows / 2, ld, 2). An
// f32 right operand is plain rows, and "pairs" of f32 means just that.
#pragma once

#include <cstdint>

#include "blocked/number.h"

namespace stepc::blocked {

// A rectangle to copy: `rows` x `columns` are there, the result is padded with zeros to the padded sizes.
struct Copy {
  int64_t rows, columns, ld;
  int64_t padded_rows, padded_columns, ld_out;  // of the result before any pairing; bf16 pairs need even rows
};

// One block of attention scores going through an online softmax.
struct SoftmaxTile {
  float* scores;  // (rows, columns), overwritten; columns is a multiple of 16
  int64_t ld, rows, columns;
  const int32_t* begin;  // visible columns of each row: [begin, end) - first_key
  const int32_t* end;
  int32_t first_key;
  float factor;  // weight = exp2((score - top) * factor), factor > 0
  void* weights;
  int64_t ld_weights;
  float* top;    // per row, running maximum; -inf at first
  float* sum;    // per row, running sum of weights
  float* total;  // (rows, total_columns) rescaled when the maximum moves; total_columns is a multiple of 16
  int64_t ld_total, total_columns;
  bool first;  // nothing summed yet
};

// One transposed block of attention gradients: rows are keys, columns are queries.
struct GradientTile {
  const float* scores;  // (rows, columns); columns is a multiple of 32, rows even
  const float* weight_gradients;
  int64_t ld, rows, columns;
  const int32_t* begin;  // visible keys of each query
  const int32_t* end;
  int32_t first_key;
  bool masked;             // some pair of this block is hidden
  const float* logsumexp;  // per query, in units of the scores
  const float* delta;      // per query, sum of gradient x result
  float factor, scale;     // weight = exp2((score - logsumexp) * factor); score gradient = scale x ...
  void* weights;           // (rows, columns)
  void* score_gradients;   // (rows, columns)
  void* score_gradient_pairs;
};

// One tile of transposed logits (classes, tokens) in linear + cross-entropy; see linear_cross_entropy.cpp.
struct ExpTile {
  const float* logits;
  int64_t ld, rows, columns;
  void* weights;  // exp(logit - top) in the element type
  int64_t ld_weights;
  float* top;  // per token over this tile's rows
  float* sum;
  float* logit_sum;
};

template <class T>
struct RowKernels {
  // C (rows, columns) = [C +] A (rows, depth) B (depth, columns), B in pairs: the micro-kernel's stand-in.
  void (*multiply)(int64_t rows, int64_t columns, int64_t depth, const T* a, int64_t lda, const T* b, int64_t ldb,
                   float* c, int64_t ldc, bool accumulate);
  void (*copy_rows)(const Copy& copy, const T* in, T* out);
  void (*pairs)(const Copy& copy, const T* in, T* out);
  void (*transpose)(const Copy& copy, const T* in, T* out);        // sizes are those of `in`; out (columns, rows)
  void (*transpose_pairs)(const Copy& copy, const T* in, T* out);  // the transpose, in pairs of its rows
  void (*softmax)(const SoftmaxTile& tile);
  void (*attention_gradient)(const GradientTile& tile);
  void (*exp_tile)(const ExpTile& tile);
  // out = values * factor[row], for the rows that a softmax leaves behind
  void (*store_scaled)(const float* values, int64_t ld, int64_t rows, int64_t columns, const float* factor, T* out,
                       int64_t ld_out);
  // values (rows, columns) += x
  void (*add)(float* values, int64_t ld, int64_t rows, int64_t columns, const T* x, int64_t ld_x);
  // result[row] = sum of a x b over the row
  void (*dot_rows)(const T* a, int64_t ld_a, const T* b, int64_t ld_b, int64_t rows, int64_t columns, float* result);
  // values[row][column] = values[row][column] * factor[column] - subtract[column]
  void (*scale_columns)(T* values, int64_t ld, int64_t rows, int64_t columns, const float* factor,
                        const float* subtract);
  void (*store)(const float* values, int64_t ld, int64_t rows, int64_t columns, T* out, int64_t ld_out);
};

struct RowTable {
  RowKernels<float> f32;
  RowKernels<Bf16> bf16;

  template <class T>
  const RowKernels<T>& of() const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return f32;
    } else {
      return bf16;
    }
  }
};

RowTable generic_rows();
RowTable avx512_rows();  // call only where MicroKernels say avx512
inline RowTable rows_of(bool avx512) { return avx512 ? avx512_rows() : generic_rows(); }

}  // namespace stepc::blocked
