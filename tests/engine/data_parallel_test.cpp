// What ranks do together around a loop that stays as it is: each of several threads a rank.
#include "engine/ranks/data_parallel.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "tests/comm/rank_threads.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

constexpr int64_t kRanks = 3;
constexpr int64_t kLarge = 800;  // squared, more than goes at once

std::vector<at::Tensor> tensors_of(int64_t rank) {
  const auto filled = [&](std::vector<int64_t> sizes) { return torch::full(sizes, static_cast<double>(rank + 1)); };
  return {filled({3}), filled({kLarge, kLarge}), filled({2, 5}).t(), filled({kLarge, kLarge}).t().to(torch::kFloat64),
          filled({})};
}

TEST(DataParallel, AveragesWhereTheTensorsLie) {
  on_ranks(kRanks, [&](Ranks& ranks) {
    const std::vector<at::Tensor> tensors = tensors_of(ranks.rank());
    average(ranks, tensors, "a\nb\nc\nd\ne");
    for (const at::Tensor& tensor : tensors)
      EXPECT_TRUE(torch::allclose(tensor, torch::full_like(tensor, 2.0)));  // of 1, 2, 3
  });
}

TEST(DataParallel, SharesWhatEachOwnerHas) {
  on_ranks(kRanks, [&](Ranks& ranks) {
    const std::vector<at::Tensor> tensors = tensors_of(ranks.rank());
    const std::vector<int64_t> owners = {2, 0, 1, 2, 1};
    EXPECT_TRUE(differ(ranks, tensors));
    share(ranks, tensors, owners);
    for (size_t t = 0; t < tensors.size(); ++t)
      EXPECT_TRUE(torch::equal(tensors[t], torch::full_like(tensors[t], static_cast<double>(owners[t] + 1))));
    EXPECT_FALSE(differ(ranks, tensors));
  });
}

TEST(DataParallel, SaysOnAllRanksWhoseGradientsAreOthers) {
  on_ranks(kRanks, [&](Ranks& ranks) {
    const bool is_last = ranks.rank() == kRanks - 1;
    const std::vector<at::Tensor> tensors(is_last ? 1 : 2, torch::ones({2}));
    EXPECT_USER_ERROR(average(ranks, tensors, is_last ? "a" : "a\nb"),
                      "rank 2 has no gradient of 'b', and rank 0 has one: every rank's step uses the same parameters");
    EXPECT_USER_ERROR(differ(ranks, {torch::ones({is_last ? 3 : 2})}), "rank 2 has another model than rank 0");
  });
}

}  // namespace
}  // namespace stepc
