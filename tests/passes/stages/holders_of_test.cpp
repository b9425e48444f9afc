// Which stages hold a tensor of the program's: those of the parameter that its key names.
#include <gtest/gtest.h>

#include "passes/stages/cut_stages.h"

namespace stepc {
namespace {

using Stages = std::vector<int64_t>;

const std::map<std::string, Stages> kHolders = {{"weight", {7}}, {"head.weight", {1}}, {"layers.1.weight", {0}}};

Stages of(InputKind kind, const std::string& key) {
  const Stages* found = holders_of(kind, key, kHolders);
  return found == nullptr ? Stages{} : *found;
}

TEST(HoldersOf, StateIsWhereItsParameterIs) {
  EXPECT_EQ(of(InputKind::kOptimizerState, "head.weight.exp_avg"), Stages{1});
  EXPECT_EQ(of(InputKind::kOptimizerState, "layers.1.weight.master"), Stages{0});
  EXPECT_EQ(of(InputKind::kOptimizerState, "head.weight"), Stages{1});
}

TEST(HoldersOf, AProgramMayNameItsOptimizer) {
  EXPECT_EQ(of(InputKind::kOptimizerState, "optimizer.head.weight.exp_avg"), Stages{1});
  EXPECT_EQ(of(InputKind::kOptimizerState, "training.optimizer.layers.1.weight.exp_avg_sq"), Stages{0});
  EXPECT_EQ(of(InputKind::kOptimizerState, "o.weight.exp_avg"), Stages{7}) << "the longest that stands in it";
}

TEST(HoldersOf, OthersAreNamedWhole) {
  EXPECT_EQ(of(InputKind::kParameter, "head.weight"), Stages{1});
  EXPECT_EQ(of(InputKind::kGradient, "layers.1.weight"), Stages{0});
  EXPECT_EQ(of(InputKind::kParameter, "model.head.weight"), Stages{});
  EXPECT_EQ(of(InputKind::kBuffer, "weight"), Stages{});
  EXPECT_EQ(of(InputKind::kOptimizerState, "optimizer.tail.step"), Stages{});
  EXPECT_EQ(of(InputKind::kOptimizerState, ""), Stages{});
  EXPECT_EQ(of(InputKind::kOptimizerState, "head.weighty.exp_avg"), Stages{}) << "names end at dots";
}

}  // namespace
}  // namespace stepc
