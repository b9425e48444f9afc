#include "engine/ranks/common_machine.h"

#include <gtest/gtest.h>

#include "cost/named_target.h"
#include "tests/comm/rank_threads.h"

namespace stepc {
namespace {

const c10::Device kElsewhere(c10::DeviceType::PrivateUse1, 0);  // nothing here says what card it is

TEST(CommonCard, IsRank0s) {
  on_ranks(2, [](Ranks& ranks) {
    const CommonCard card = common_card(kElsewhere, named_target(ranks.rank() == 0 ? "h200" : "h100"), ranks);
    EXPECT_EQ(card.known.target, named_target("h200"));
    EXPECT_EQ(card.why_unknown, "");
  });
}

TEST(CommonCard, IsKnownOnAllRanksOrOnNone) {
  on_ranks(2, [](Ranks& ranks) {
    const Target of_a_cpu;
    const CommonCard card = common_card(kElsewhere, ranks.rank() == 0 ? named_target("h100") : of_a_cpu, ranks);
    EXPECT_FALSE(card.known.target.gpu);
    EXPECT_TRUE(card.why_unknown.starts_with(ranks.rank() == 0
                                                 ? "rank 1: those of privateuseone:0 are not known, those of a100, h100"
                                                 : "those of privateuseone:0 are not known, those of a100, h100"))
        << card.why_unknown;
  });
}

}  // namespace
}  // namespace stepc
