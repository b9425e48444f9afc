// Rates between, above and below the points of their tables.
#include "cost/rates.h"

#include <gtest/gtest.h>

namespace stepc {
namespace {

double flops(int64_t rows, int64_t columns, int64_t inner) {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(inner);
}

TEST(Rates, WhatIsSmallerThanATableTakesAsLongAsItsSmallest) {
  Rates rates;
  rates.matmuls = {{KernelOwner::kLibrary, DType::kF32, 16, 16, 16, 1e9},
                   {KernelOwner::kLibrary, DType::kF32, 64, 64, 64, 4e9}};
  const auto seconds = [&](int64_t rows, int64_t columns, int64_t inner) {
    return flops(rows, columns, inner) / matmul_rate(rates, KernelOwner::kLibrary, DType::kF32, rows, columns, inner);
  };
  EXPECT_DOUBLE_EQ(seconds(16, 16, 16), flops(16, 16, 16) / 1e9);
  EXPECT_NEAR(seconds(2, 16, 16), seconds(16, 16, 16), 1e-12);
  EXPECT_NEAR(seconds(1, 1, 1), seconds(16, 16, 16), 1e-12);
  EXPECT_NEAR(seconds(2, 64, 64), seconds(16, 64, 64), 1e-12) << "each size of its own";
  EXPECT_DOUBLE_EQ(seconds(128, 64, 64), 2 * seconds(64, 64, 64)) << "above, the rate stays";
}

TEST(Rates, BetweenPointsATimeThatIsAPowerOfTheSizesIsFound) {
  Rates rates;
  rates.matmuls.clear();
  // A start that does not depend on the size, then a rate that does not.
  const auto add = [&](int64_t n, double seconds) {
    rates.matmuls.push_back({KernelOwner::kLibrary, DType::kF32, n, n, n, flops(n, n, n) / seconds});
  };
  for (const int64_t n : {4, 8, 16, 64}) add(n, 1e-6);
  const double rate = matmul_rate(rates, KernelOwner::kLibrary, DType::kF32, 32, 32, 32);
  EXPECT_NEAR(flops(32, 32, 32) / rate, 1e-6, 0.05e-6);
  EXPECT_LE(matmul_rate(rates, KernelOwner::kLibrary, DType::kF32, 64, 4, 4), rates.matmuls.back().flops_per_second)
      << "no faster than all points";
}

TEST(Rates, ShortAttentionTakesAsLongAsTheShortestMeasured) {
  Rates rates;
  rates.attentions = {{KernelOwner::kLibrary, DType::kF32, false, 32, 64, 1e9},
                      {KernelOwner::kLibrary, DType::kF32, false, 128, 64, 4e9}};
  const auto rate = [&](int64_t length, int64_t width) {
    return attention_rate(rates, KernelOwner::kLibrary, DType::kF32, false, length, width);
  };
  EXPECT_NEAR(rate(8, 64), 1e9 / 16, 1) << "a quarter of the length is a sixteenth of the arithmetic";
  EXPECT_NEAR(rate(32, 16), 1e9 / 4, 1);
  EXPECT_NEAR(rate(64, 64), 2e9, 1) << "half way";
  EXPECT_DOUBLE_EQ(rate(512, 128), 4e9);
}

TEST(Rates, StreamsAreInterpolatedByTheirLogarithms) {
  Rates rates;
  rates.streams = {{1 << 10, 1e11}, {1 << 20, 1e9}};
  EXPECT_DOUBLE_EQ(stream_rate(rates, 1), 1e11);
  EXPECT_NEAR(stream_rate(rates, 1 << 15), 1e10, 1);
  EXPECT_DOUBLE_EQ(stream_rate(rates, 1e12), 1e9);
}

}  // namespace
}  // namespace stepc
