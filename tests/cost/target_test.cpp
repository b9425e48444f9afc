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

TEST(Target, AnOperatorOfTheProgramsDoesWhatItsRuleSays) {
  const Graph graph = parse_graph(R"(stepc.graph 1
input %0: bf16[64] = parameter "w"
%1: f32[64] = my::op(%0) -> % rule flops 100.0 | forward ""
%2: f32[64] = my::op(%1) -> % rule flops 100.0 bytes 7.0 | forward ""
return %2
)");
  EXPECT_EQ(work_of(graph, graph.nodes[0]), (Work{0, 100, 64 * 2 + 64 * 4}));
  EXPECT_EQ(work_of(graph, graph.nodes[1]), (Work{100, 0, 7}));
  EXPECT_EQ(work_of(graph, {NodeId(1)}, graph.nodes[1].inputs, graph.nodes[1].outputs), (Work{100, 0, 7}));
}

TEST(Target, AKernelReadsEachTensorOnceAndLeavesItsResults) {
  const Graph graph = parse_graph(R"(stepc.graph 1
input %0: f32[64, 64] = parameter "w"
input %1: f32[64] = batch "0"
%2: f32[64, 64] = expand(%1) {shape=[64, 64]} | forward ""
%3: f32[64, 64] = mul(%0, %2) | forward "" group 0
%4: f32[64, 64] = mul(%3, %0) | forward "" group 0
return %4
)");
  const Work work = work_of(graph, {NodeId(1), NodeId(2)}, {TensorId(0), TensorId(2), TensorId(0)}, {TensorId(4)});
  EXPECT_DOUBLE_EQ(work.flops, 2 * 64 * 64);
  EXPECT_DOUBLE_EQ(work.bytes, (64 * 64 + 64 + 64 * 64) * 4) << "what is broadcast is read once";
}

TEST(Target, ALookUpReadsWhatItTakes) {
  const Graph graph = parse_graph(R"(stepc.graph 1
input %0: f32[1000, 8] = parameter "table"
input %1: i64[2] = batch "0"
%2: f32[2, 8] = take(%0, %1) {dim=0} | forward ""
return %2
)");
  const Work work = work_of(graph, {NodeId(0)}, graph.nodes[0].inputs, graph.nodes[0].outputs);
  EXPECT_DOUBLE_EQ(work.bytes, 2 * 2 * 8 * 4 + 2 * 8);
}

TEST(Target, NarrowNumbersHaveARateOfTheirOwn) {
  const Graph graph = parse_graph(R"(stepc.graph 1
input %0: bf16[64, 64] = parameter "w"
%1: bf16[64, 64] = matmul(%0, %0) {transpose_a=false, transpose_b=false} | forward ""
return %1
)");
  constexpr double kFlops = 2.0 * 64 * 64 * 64;
  EXPECT_DOUBLE_EQ(seconds_of(graph, graph.nodes[0], {1e9, 1e9, 1e6}), kFlops / 1e6);
}

}  // namespace
}  // namespace stepc
