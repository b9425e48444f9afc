#include "aten/memory_regions.h"

#include <gtest/gtest.h>

#include <ATen/Functions.h>

namespace stepc {
namespace {

TEST(MemoryRegions, WindowsThatOverlapAreOneRegion) {
  const at::Tensor data = at::arange(100).to(at::kFloat);
  const std::vector<MemoryRegion> regions =
      memory_regions({data.slice(0, 40, 50), data.slice(0, 0, 10), data.slice(0, 5, 20), data.slice(0, 19, 30)});
  ASSERT_EQ(regions.size(), 2U);
  EXPECT_EQ(regions[0].tensors, std::vector<size_t>({0}));
  EXPECT_EQ(regions[0].begin, 160);
  EXPECT_EQ(regions[1].tensors, std::vector<size_t>({1, 2, 3}));
  EXPECT_EQ(regions[1].begin, 0);
  EXPECT_EQ(regions[1].end, 120);
}

TEST(MemoryRegions, WindowsBesideEachOtherAreNot) {
  const at::Tensor data = at::zeros({16});
  EXPECT_EQ(memory_regions({data.slice(0, 0, 8), data.slice(0, 8, 16)}).size(), 2U);
  EXPECT_EQ(memory_regions({data, data.clone()}).size(), 2U);
}

TEST(MemoryRegions, StridedWindowsSpanWhatLiesBetween) {
  const at::Tensor table = at::zeros({4, 6});
  const std::vector<MemoryRegion> regions = memory_regions({table.slice(1, 0, 2), table.slice(1, 2, 4)});
  ASSERT_EQ(regions.size(), 1U);
  EXPECT_EQ(regions[0].begin, 0);
  EXPECT_EQ(regions[0].end, (3 * 6 + 4) * 4);
}

TEST(MemoryRegions, WhatHasNoMemoryLiesInNone) {
  EXPECT_TRUE(memory_regions({at::Tensor(), at::zeros({2}).to_sparse()}).empty());
  EXPECT_EQ(memory_regions({at::empty({0}), at::zeros({2})}).size(), 2U);
}

}  // namespace
}  // namespace stepc
