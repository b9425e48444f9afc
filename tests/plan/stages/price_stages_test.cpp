// What a pipeline takes of which only its stages' times and bytes are known: closed forms of equal stages.
#include "plan/stages/price_stages.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace stepc {
namespace {

constexpr double kRounding = 1e-9;

std::vector<StageTake> equal_stages(int64_t stages) {
  std::vector<StageTake> out(static_cast<size_t>(stages), StageTake{1, 2, 1000, 10, 20});
  out.back() = {0, 3, 0, 0, 20};  // both passes in one
  out.front().back_bytes = 0;
  return out;
}

double at_once(double /*bytes*/) { return 0; }

TEST(PriceStages, EqualStagesWaitAsTheClosedFormSays) {
  for (const int64_t stages : {2, 4, 8})
    for (const int64_t micro_batches : {stages, 3 * stages})
      for (const StageOrder& order :
           {gpipe_order(stages, micro_batches), one_forward_one_backward(stages, micro_batches)}) {
        const PricedStages priced = price_stages(equal_stages(stages), order, at_once);
        EXPECT_NEAR(priced.timeline.seconds, 3.0 * static_cast<double>(micro_batches + stages - 1), kRounding);
        EXPECT_NEAR(priced.timeline.idle_share(),
                    static_cast<double>(stages - 1) / static_cast<double>(micro_batches + stages - 1), kRounding);
      }
}

TEST(PriceStages, ARankHoldsItsLiveMicroBatches) {
  constexpr int64_t kStages = 4, kMicroBatches = 9;
  const PricedStages alternating =
      price_stages(equal_stages(kStages), one_forward_one_backward(kStages, kMicroBatches), at_once);
  const PricedStages all = price_stages(equal_stages(kStages), gpipe_order(kStages, kMicroBatches), at_once);
  for (int64_t rank = 0; rank + 1 < kStages; ++rank) {
    const uint64_t held = alternating.between_bytes[static_cast<size_t>(rank)];
    EXPECT_GE(held, static_cast<uint64_t>((kStages - rank) * 1000));
    EXPECT_LE(held, static_cast<uint64_t>((kStages - rank) * 1000 + 4 * 30)) << "and a few messages";
    EXPECT_GE(all.between_bytes[static_cast<size_t>(rank)], static_cast<uint64_t>(kMicroBatches * 1000));
  }
}

TEST(PriceStages, MessagesTakeTheTimeOfTheirBytes) {
  const StageOrder order = one_forward_one_backward(2, 2);
  std::vector<double> sizes;
  const PricedStages priced = price_stages(equal_stages(2), order, [&](double bytes) {
    sizes.push_back(bytes);
    return bytes / 100;
  });
  std::ranges::sort(sizes);
  EXPECT_EQ(sizes, (std::vector<double>{10, 10, 20, 20}));
  // Forward, there, both passes, back, backward, and the same once more behind it on the second rank.
  EXPECT_NEAR(priced.timeline.seconds, 1 + 0.1 + 3 + 3 + 0.2 + 2, kRounding);
}

TEST(PriceStages, ASlowStageHoldsAllUp) {
  std::vector<StageTake> stages = equal_stages(3);
  stages[1].backward_seconds = 10;
  const PricedStages priced = price_stages(stages, one_forward_one_backward(3, 6), at_once);
  EXPECT_GE(priced.timeline.seconds, 6 * 11.0);
  EXPECT_NEAR(priced.timeline.busy[1], 6 * 11.0, kRounding);
}

}  // namespace
}  // namespace stepc
