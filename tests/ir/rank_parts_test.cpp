#include "ir/rank_parts.h"

#include <gtest/gtest.h>

namespace stepc {
namespace {

TEST(RankParts, EveryRankReducesOne) {
  EXPECT_EQ(part_elements(10, 4), 3);
  EXPECT_EQ(part_elements(1, 8), 1);
  EXPECT_EQ(part_elements(0, 8), 0);
}

TEST(RankParts, TheOthersSendWhatScratchHolds) {
  EXPECT_EQ(reduction_scratch_bytes(200, 2, 2), 200U);
  EXPECT_EQ(reduction_scratch_bytes(32, 4, 4), 96U);
  EXPECT_EQ(reduction_scratch_bytes(1, 4, 8), 28U);
  EXPECT_EQ(reduction_scratch_bytes(10, 8, 4), 72U);
  EXPECT_EQ(reduction_scratch_bytes(10, 8, 1), 0U);
  EXPECT_EQ(reduction_scratch_bytes(0, 8, 4), 0U);
}

TEST(RankParts, LargePartsGoInPieces) {
  constexpr int64_t kMany = int64_t{1} << 32;
  EXPECT_EQ(piece_elements(kMany, 4, 2), int64_t{1} << 22);
  for (int64_t ranks : {2, 3, 8, 1000})
    EXPECT_LE(reduction_scratch_bytes(kMany, 2, ranks), kReductionScratchBytes) << ranks;
  EXPECT_EQ(piece_elements(kMany, 8, int64_t{1} << 24), 1) << "so many that one element of each is more";
}

}  // namespace
}  // namespace stepc
