// Packing for row_kernels_impl.h: rows to pairs, and transposes in blocks of 16 x 16 words. A word is one f32 or a pair
// of bf16.
#pragma once

#include <algorithm>

#include "blocked/row_kernels.h"
#include "blocked/vector_impl.h"

namespace stepc::blocked {
namespace {

constexpr int64_t kBlock = 16;
using Word = uint32_t __attribute__((may_alias, aligned(2)));  // one f32 or two bf16, where they lie

// out[c][r] = in[r][c] for 16 x 16 words.
#ifdef __AVX512BF16__
inline void transpose_words(const Word* in, int64_t ld, Word* out, int64_t ld_out) {
  __m512i r[16], t[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(in + i * ld);
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
    t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
  }
  for (int i = 0; i < 8; ++i) {
    _mm512_storeu_si512(out + i * ld_out, _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88));
    _mm512_storeu_si512(out + (8 + i) * ld_out, _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd));
  }
}
inline void pair_up(const Bf16* even, const Bf16* odd, Bf16* out) {  // 16 of each -> 32
  const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)even));
  const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)odd));
  _mm512_storeu_si512(out, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
}
#else
inline void transpose_words(const Word* in, int64_t ld, Word* out, int64_t ld_out) {
  for (int64_t r = 0; r < kBlock; ++r) {
    for (int64_t c = 0; c < kBlock; ++c) out[c * ld_out + r] = in[r * ld + c];
  }
}
inline void pair_up(const Bf16* even, const Bf16* odd, Bf16* out) {
  for (int64_t i = 0; i < kBlock; ++i) {
    out[2 * i] = even[i];
    out[2 * i + 1] = odd[i];
  }
}
#endif

template <class T>
void copy_rows(const Copy& copy, const T* in, T* out) {
  for (int64_t r = 0; r < copy.padded_rows; ++r) {
    T* row = out + r * copy.ld_out;
    const int64_t columns = r < copy.rows ? copy.columns : 0;
    std::copy_n(in + r * copy.ld, columns, row);
    std::fill(row + columns, row + copy.padded_columns, T{});
  }
}

inline void make_pairs(const Copy& copy, const Bf16* in, Bf16* out) {
  for (int64_t r = 0; r < copy.padded_rows; r += 2) {
    const Bf16* even = in + r * copy.ld;
    Bf16* row = out + r * copy.ld_out;
    int64_t c = 0;
    if (r + 1 < copy.rows) {
      for (; c + kBlock <= copy.columns; c += kBlock) pair_up(even + c, even + copy.ld + c, row + 2 * c);
    }
    for (; c < copy.padded_columns; ++c) {
      const bool there = c < copy.columns;
      row[2 * c] = there && r < copy.rows ? even[c] : Bf16{};
      row[2 * c + 1] = there && r + 1 < copy.rows ? even[copy.ld + c] : Bf16{};
    }
  }
}
inline void make_pairs(const Copy& copy, const float* in, float* out) { copy_rows(copy, in, out); }

// Transposes words. The input has `rows` x `words`, in rows of `ld` words; the output padded_words x padded_rows.
struct WordCopy {
  int64_t rows, words, ld;
  int64_t padded_rows, padded_words, ld_out;
};

// fetch(row, word, block) fills a block of 16 x 16 words that is zero where nothing is there.
template <class Fetch>
inline void transpose_blocks(const WordCopy& copy, const Word* in, const Fetch& fetch, Word* out) {
  for (int64_t r = 0; r < copy.padded_rows; r += kBlock) {
    for (int64_t w = 0; w < copy.padded_words; w += kBlock) {
      const int64_t rows = std::min(kBlock, copy.padded_rows - r);
      const int64_t words = std::min(kBlock, copy.padded_words - w);
      Word* to = out + w * copy.ld_out + r;
      Word block[kBlock * kBlock];
      const Word* from = block;
      int64_t ld = kBlock;
      if (in != nullptr && r + kBlock <= copy.rows && w + kBlock <= copy.words) {
        from = in + r * copy.ld + w;
        ld = copy.ld;
      } else {
        fetch(r, w, block);
      }
      if (rows == kBlock && words == kBlock) {
        transpose_words(from, ld, to, copy.ld_out);
        continue;
      }
      Word transposed[kBlock * kBlock];
      transpose_words(from, ld, transposed, kBlock);
      for (int64_t i = 0; i < words; ++i) std::copy_n(transposed + i * kBlock, rows, to + i * copy.ld_out);
    }
  }
}

// in (rows, columns) -> out (columns, rows).
inline void transpose(const Copy& copy, const float* in, float* out) {
  const WordCopy words{copy.rows, copy.columns, copy.ld, copy.padded_rows, copy.padded_columns, copy.ld_out};
  const auto fetch = [&](int64_t row, int64_t word, Word* block) {
    std::fill_n(block, kBlock * kBlock, 0U);
    const int64_t count = std::clamp<int64_t>(copy.columns - word, 0, kBlock);
    for (int64_t i = 0; i < kBlock && row + i < copy.rows; ++i) {
      std::memcpy(block + i * kBlock, in + (row + i) * copy.ld + word, static_cast<size_t>(count) * sizeof(float));
    }
  };
  transpose_blocks(words, reinterpret_cast<const Word*>(in), fetch, reinterpret_cast<Word*>(out));
}
inline void transpose_to_pairs(const Copy& copy, const float* in, float* out) { transpose(copy, in, out); }

// in (rows, columns) -> out (columns / 2, rows, 2): a pair is a word of the input.
inline void transpose_to_pairs(const Copy& copy, const Bf16* in, Bf16* out) {
  const bool whole_words = copy.ld % 2 == 0;
  const WordCopy words{copy.rows,        copy.columns / 2,        copy.ld / 2,
                       copy.padded_rows, copy.padded_columns / 2, copy.ld_out};
  const auto fetch = [&](int64_t row, int64_t word, Word* block) {
    std::fill_n(block, kBlock * kBlock, 0U);
    const int64_t count = std::clamp<int64_t>(copy.columns - 2 * word, 0, 2 * kBlock);
    for (int64_t i = 0; i < kBlock && row + i < copy.rows; ++i) {
      std::memcpy(block + i * kBlock, in + (row + i) * copy.ld + 2 * word, static_cast<size_t>(count) * sizeof(Bf16));
    }
  };
  transpose_blocks(words, whole_words ? reinterpret_cast<const Word*>(in) : nullptr, fetch,
                   reinterpret_cast<Word*>(out));
}

// in (rows, columns) -> out (columns, rows): pairs of rows are words, whose transpose is rows of the output.
inline void transpose(const Copy& copy, const Bf16* in, Bf16* out) {
  const WordCopy words{ceil_div(copy.rows, 2), copy.columns,        0,
                       copy.padded_rows / 2,   copy.padded_columns, copy.ld_out / 2};
  const auto fetch = [&](int64_t pair, int64_t column, Word* block) {
    const int64_t rows = std::clamp<int64_t>(copy.rows - 2 * pair, 0, 2 * kBlock);
    const int64_t columns = std::clamp<int64_t>(copy.columns - column, 0, kBlock);
    make_pairs({rows, columns, copy.ld, 2 * kBlock, kBlock, kBlock}, in + 2 * pair * copy.ld + column,
               reinterpret_cast<Bf16*>(block));
  };
  transpose_blocks(words, nullptr, fetch, reinterpret_cast<Word*>(out));
}

}  // namespace
}  // namespace stepc::blocked
