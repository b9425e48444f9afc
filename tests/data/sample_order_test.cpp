#include "data/sample_order.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace stepc {
namespace {

TEST(Permutation, IsABijection) {
  EXPECT_TRUE(rc::check([](uint64_t key) {
    const auto count = *rc::gen::inRange<uint64_t>(1, 3000);
    const Permutation permutation(count, key);
    std::vector<bool> seen(count);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t image = permutation(i);
      RC_ASSERT(image < count);
      RC_ASSERT(!seen[image]);
      seen[image] = true;
    }
  }));
}

TEST(Permutation, HoldsAtTheEdges) {
  EXPECT_EQ(Permutation(1, 5)(0), 0U);
  const Permutation largest(uint64_t{1} << 62, 5);
  EXPECT_NE(largest(0), largest(1));
  EXPECT_LT(largest((uint64_t{1} << 62) - 1), uint64_t{1} << 62);
}

TEST(WindowOfSample, EveryEpochHasEveryWindowOnceInAnotherOrder) {
  constexpr uint64_t kCount = 1000;
  std::vector<std::vector<uint64_t>> epochs(3);
  for (uint64_t i = 0; i < 3 * kCount; ++i) epochs[i / kCount].push_back(window_of_sample(7, kCount, i));
  for (const auto& epoch : epochs) EXPECT_EQ(std::set(epoch.begin(), epoch.end()).size(), kCount);
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  EXPECT_NE(window_of_sample(7, kCount, 0) * kCount + window_of_sample(7, kCount, 1),
            window_of_sample(8, kCount, 0) * kCount + window_of_sample(8, kCount, 1));
}

// The order is part of what a resumed run relies on: it must never change.
TEST(WindowOfSample, IsFixedForever) {
  std::vector<uint64_t> windows;
  for (uint64_t i = 0; i < 8; ++i) windows.push_back(window_of_sample(42, 1000, i));
  EXPECT_EQ(windows, (std::vector<uint64_t>{239, 593, 33, 840, 943, 728, 816, 651}));
}

// Where a window lands must not depend on where it was: a chi-square over 10 x 10 cells of (index, window), each with
// 100 expected, has mean 81 and deviation 12.7.
TEST(WindowOfSample, SpreadsEvenly) {
  constexpr uint64_t kCount = 10'000;
  std::vector<double> cells(100);
  for (uint64_t i = 0; i < kCount; ++i) ++cells[i / 1000 * 10 + window_of_sample(1, kCount, i) / 1000];
  double chi_square = 0;
  for (const double cell : cells) chi_square += (cell - 100) * (cell - 100) / 100;
  EXPECT_LT(chi_square, 81 + 5 * 12.7);
  EXPECT_GT(chi_square, 81 - 5 * 12.7);
}

}  // namespace
}  // namespace stepc
