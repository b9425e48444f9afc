#include "cost/target.h"

#include <gtest/gtest.h>

namespace stepc {
namespace {

TEST(Target, ANodeTakesItsArithmeticOrItsTraffic) {
  const Graph graph = parse_graph(R"(stepc.graph 1
input %0: f32[64, 64] = parameter "w"
%1: f32[64, 64] = matmul(%0, %0) {transpose_a=false, transpose_b=false} | forward ""
%2: f32[64, 64] = add(%1, %0) | forward ""
%3: f32[4096] = reshape(%2) {shape=[4096]} | forward ""
%4: f32[4096] = aten::frob(%3) -> % | forward ""
return %4
)");
  constexpr double kBytes = 64 * 64 * 4;
  const Target slow_arithmetic{1e6, 1e9};
  const Target slow_memory{1e12, 1e6};
  EXPECT_DOUBLE_EQ(seconds_of(graph, graph.nodes[0], slow_arithmetic), 2.0 * 64 * 64 * 64 / 1e6);
  EXPECT_DOUBLE_EQ(seconds_of(graph, graph.nodes[0], slow_memory), 3 * kBytes / 1e6);
  EXPECT_DOUBLE_EQ(seconds_of(graph, graph.nodes[1], slow_memory), 3 * kBytes / 1e6);
  EXPECT_DOUBLE_EQ(seconds_of(graph, graph.nodes[2], slow_memory), 0);
  EXPECT_DOUBLE_EQ(seconds_of(graph, graph.nodes[3], slow_memory), 2 * kBytes / 1e6);
}

}  // namespace
}  // namespace stepc
