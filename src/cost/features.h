// Features: the kernels of a machine, as plain data: the fast matmuls and instructions of a CPU for blocked kernels, or
// that it is a GPU. A plan depends on these instead of on the machine that makes it.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "ops/rules/matmul_rule.h"

namespace stepc {

struct Features {
  bool bf16 = false;    // bf16 x bf16 -> f32 products of blocks
  bool f32 = false;     // f32 products of blocks
  bool avx512 = false;  // AVX-512 F, BW, DQ, VL and BF16
  bool intel = false;   // the CPU that the library's own f32 matmuls are written for
  int sm = 0;           // an NVIDIA GPU: 90 for compute capability 9.0, without the other features; 0: a CPU

  bool operator==(const Features&) const = default;
};

struct FeatureName {
  std::string_view name;
  bool Features::*there;
};
inline constexpr std::array<FeatureName, 4> kFeatureNames = {
    {{"bf16", &Features::bf16}, {"f32", &Features::f32}, {"avx512", &Features::avx512}, {"intel", &Features::intel}}};

// The oldest GPU for which torch still has kernels, and the largest "sm".
inline constexpr int kOldestSm = 75, kMostSm = 999;

// "bf16, f32, avx512", "none"; for a GPU "cuda sm_90".
std::string to_text(const Features& features);

MatmulRule matmul_rule(const Features& features);

// Whether matmuls take float8 operands: GPUs from Ada on.
inline bool has_fp8(const Features& features) { return features.sm >= 89; }

}  // namespace stepc
