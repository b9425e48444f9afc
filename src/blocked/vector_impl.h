// Sixteen floats at a time, for row_kernels_impl.h: AVX-512 where the including file is compiled for it, GCC's vectors
// of any instruction set elsewhere. Everything is local to the including file, because the same function is compiled
// for several instruction sets.
#pragma once

#include <cstdint>
#include <cstring>

#include "blocked/number.h"

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

namespace stepc::blocked {
namespace {

constexpr int64_t kLanes = 16;
using Vec = float __attribute__((vector_size(64)));
using VecInt = int32_t __attribute__((vector_size(64)));
using VecWord = uint32_t __attribute__((vector_size(64)));
using VecHalf = uint16_t __attribute__((vector_size(32)));

template <class V, class P>
inline V load_bytes(const P* from) {
  V value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline Vec splat(float value) { return value - Vec{}; }
inline Vec load(const float* from) { return load_bytes<Vec>(from); }
inline Vec load(const Bf16* from) {
  const auto half = load_bytes<VecHalf>(from);
  return reinterpret_cast<Vec>(__builtin_convertvector(half, VecInt) << 16);
}
inline void store(float* to, Vec value) { std::memcpy(to, &value, sizeof value); }

#ifdef __AVX512BF16__

// With a NaN among the two, the second: a NaN in `b` survives.
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec select_range(Vec value, VecInt index, VecInt low, VecInt high) {  // value where low <= index < high, else 0
  const __mmask16 in =
      _mm512_cmple_epi32_mask((__m512i)low, (__m512i)index) & _mm512_cmplt_epi32_mask((__m512i)index, (__m512i)high);
  return _mm512_maskz_mov_ps(in, value);
}
inline float sum_of(Vec value) { return _mm512_reduce_add_ps(value); }
inline float max_of(Vec value) { return _mm512_reduce_max_ps(value); }
inline Vec round_whole(Vec value) { return _mm512_roundscale_ps(value, 0); }
inline Vec scale_by_power(Vec value, Vec power) { return _mm512_scalef_ps(value, power); }
inline void store(Bf16* to, Vec value) { _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh(value)); }
inline void store_two(Bf16* to, Vec low, Vec high) { _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low)); }

#else

inline Vec max(Vec a, Vec b) { return a > b ? a : b; }
inline Vec min(Vec a, Vec b) { return a < b ? a : b; }
inline Vec select_range(Vec value, VecInt index, VecInt low, VecInt high) {
  return reinterpret_cast<Vec>(reinterpret_cast<VecInt>(value) & (low <= index) & (index < high));
}
inline float sum_of(Vec value) {
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += value[i];
  return sum;
}
inline float max_of(Vec value) {
  float top = value[0];
  for (int i = 1; i < kLanes; ++i) top = top > value[i] ? top : value[i];
  return top;
}
inline Vec round_whole(Vec value) {  // for |value| < 2^22
  const Vec magic = splat(12582912.0F);
  return (value + magic) - magic;
}
inline Vec scale_by_power(Vec value, Vec power) {  // value near 1; flushes results below 2^-126 to zero
  const auto exponent = reinterpret_cast<VecWord>(__builtin_convertvector(power, VecInt));
  const VecWord bits = reinterpret_cast<VecWord>(value) + (exponent << 23);
  return reinterpret_cast<Vec>(bits & ~reinterpret_cast<VecWord>(power <= splat(-126.0F)));  // a NaN is not below
}
inline void store(Bf16* to, Vec value) {
  for (int i = 0; i < kLanes; ++i) to[i] = to_bf16(value[i]);
}
inline void store_two(Bf16* to, Vec low, Vec high) {
  store(to, low);
  store(to + kLanes, high);
}

#endif

inline void store_two(float* to, Vec low, Vec high) {
  store(to, low);
  store(to + kLanes, high);
}

// 2^x for x <= 0: relative error below 8e-5 (kTerms 3: far below bf16's rounding) or 2e-7 (5); NaN stays, below -126
// gives 0. The polynomials are minimax fits of 2^f on [-1/2, 1/2].
template <int kTerms>
inline Vec exp2_negative(Vec x) {
  x = max(splat(-1000.0F), x);
  const Vec whole = round_whole(x);
  const Vec f = x - whole;
  Vec p;
  if constexpr (kTerms == 3) {
    p = splat(0.05517165735F) * f + splat(0.2426111251F);
    p = p * f + splat(0.6932609677F);
    p = p * f + splat(0.9999280572F);
  } else {
    p = splat(0.001327647013F) * f + splat(0.009675540961F);
    p = p * f + splat(0.05550713092F);
    p = p * f + splat(0.2402212024F);
    p = p * f + splat(0.693146944F);
    p = p * f + splat(1.0F);
  }
  return scale_by_power(p, whole);
}

// Partial vectors at the end of a row: zeros beyond `count`.
template <class T>
inline Vec load_part(const T* from, int64_t count) {
  T part[kLanes] = {};
  std::memcpy(part, from, static_cast<size_t>(count) * sizeof(T));
  return load(part);
}
template <class T>
inline void store_part(T* to, Vec value, int64_t count) {
  T part[kLanes];
  store(part, value);
  std::memcpy(to, part, static_cast<size_t>(count) * sizeof(T));
}

// Calls body(column, count) for whole vectors and then for what is left; load_some and store_some serve both.
template <class Body>
inline void for_lanes(int64_t columns, const Body& body) {
  int64_t column = 0;
  for (; column + kLanes <= columns; column += kLanes) body(column, kLanes);
  if (column < columns) body(column, columns - column);
}
template <class T>
inline Vec load_some(const T* from, int64_t count) {
  return count == kLanes ? load(from) : load_part(from, count);
}
template <class T>
inline void store_some(T* to, Vec value, int64_t count) {
  if (count == kLanes) {
    store(to, value);
  } else {
    store_part(to, value, count);
  }
}

}  // namespace
}  // namespace stepc::blocked
