#include "passes/partition/shardings/sharding_report.h"

#include <gtest/gtest.h>

#include "passes/partition/partition.h"

namespace stepc {
namespace {

// Two matmuls of a column and a row split, and one whose single column no rank can have a part of.
Graph step() {
  return parse_graph(R"(stepc.graph 1
input %0: f32[6, 16] = batch "x"
input %1: f32[8, 16] = parameter "up"
input %2: f32[16, 8] = parameter "down"
input %3: f32[1, 16] = parameter "head"
%4: f32[6, 8] = matmul(%0, %1) {transpose_a=false, transpose_b=true} | forward "up"
%5: f32[6, 16] = matmul(%4, %2) {transpose_a=false, transpose_b=true} | forward "down"
%6: f32[6, 1] = matmul(%5, %3) {transpose_a=false, transpose_b=true} | forward "head"
return %6
)");
}

TEST(ShardingReport, EveryValueHasALineWithItsReason) {
  const std::string text = shardings_text(propagate_shardings(step(), {parse_mesh("dp_shard=2,tp=2"), 1}));
  EXPECT_TRUE(text.starts_with("mesh dp_shard=2,tp=2\n%0  f32[6, 16]  <6/dp_shard, 16>")) << text;
  EXPECT_NE(text.find("batch x         dp_shard: rows of the batch\n"), std::string::npos) << text;
  EXPECT_NE(text.find("parameter up    tp: as the matmuls that use it, or a rule\n"), std::string::npos) << text;
  EXPECT_NE(text.find("parameter head  every rank has it\n"), std::string::npos) << text;
  EXPECT_NE(text.find(" sum(tp)"), std::string::npos) << text;
}

TEST(ShardingReport, WhatNoAxisOfAKindSplitsIsWhole) {
  const ShardedStep tp = propagate_shardings(step(), {parse_mesh("tp=2"), 0, false});
  const std::vector<WholeWork> whole = whole_work(tp);
  ASSERT_EQ(whole.size(), 1U) << to_text(whole, tp);
  EXPECT_EQ(tp.graph.nodes[whole[0].node.index()].source.module, "head");
  EXPECT_EQ(whole[0].axes, std::vector<std::string>{"tp"});
  EXPECT_DOUBLE_EQ(whole[0].share, 1.0 / 17);  // of 8, 8 and 1 columns
  EXPECT_EQ(whole[0].bytes, (6U * 16 + 16 + 6) * 4);
  EXPECT_NE(to_text(whole, tp).find("5.9 %"), std::string::npos);
  const ShardedStep dp = propagate_shardings(step(), {parse_mesh("dp_replicate=2,dp_shard=3"), 3});
  EXPECT_EQ(to_text(whole_work(dp), dp), "every matmul, attention and opaque call is split\n");
}

TEST(ShardingReport, AnOpaqueCallThatIsWholeIsNamedWithItsBytes) {
  const Graph graph = parse_graph(R"(stepc.graph 1
input %0: f32[8, 4] = batch "0"
%1: f32[8, 4] = my::op(%0) -> % | forward "model.own"
return %1
)");
  const ShardedStep sharded = propagate_shardings(graph, {parse_mesh("tp=2"), 0});
  const std::string text = to_text(whole_work(sharded), sharded);
  EXPECT_NE(text.find("my::op"), std::string::npos) << text;
  EXPECT_NE(text.find("forward model.own"), std::string::npos) << text;
  EXPECT_NE(text.find("256 B  tp"), std::string::npos) << text;
}

TEST(ShardingReport, PaddingIsNamedOnceForAllThatAreSplitAlike) {
  const auto padded = [](const Strategy& strategy) {
    return to_text(padded_inputs(partition(propagate_shardings(step(), strategy).graph)));
  };
  EXPECT_EQ(padded({parse_mesh("dp_shard=2"), 1}), "");
  EXPECT_EQ(padded({parse_mesh("dp_shard=4"), 1}), "padded: batch 'x', dimension 0: 6 over 4 ranks are 2 on each\n");
  EXPECT_EQ(padded({parse_mesh("tp=3"), 0}),
            "padded: parameter 'up', dimension 0: 8 over 3 ranks are 3 on each\n"
            "padded: parameter 'down', dimension 1: 8 over 3 ranks are 3 on each\n");
}

}  // namespace
}  // namespace stepc
