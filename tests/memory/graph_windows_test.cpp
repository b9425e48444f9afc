// How tensors of a Graph lie, and which views have to be copied.
#include "memory/graph_windows.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "memory/graph_memory.h"
#include "ops/op_def.h"

namespace stepc {
namespace {

Graph windowed_graph(std::string_view text) {
  Graph graph = parse_graph(str("stepc.graph 1\n{}", text));
  verify_ops(graph);
  return graph;
}

TEST(GraphWindows, AReshapeAcrossStridesIsCopied) {
  const Graph graph = windowed_graph(R"(input %0: f32[4, 8] = batch "x"
%1: f32[8, 4] = transpose(%0) {permutation=[1, 0]} | forward ""
%2: f32[32] = reshape(%1) {shape=[32]} | forward ""
%3: f32[2, 16] = reshape(%2) {shape=[2, 16]} | forward ""
%4: f32[2, 16] = exp(%3) | forward ""
return %4
)");
  const GraphWindows w = graph_windows(graph);
  EXPECT_EQ(w.windows[1].strides, (Shape{1, 8}));
  EXPECT_EQ(w.roots[1], TensorId(0));
  EXPECT_EQ(w.copied_views, (std::vector<bool>{false, true, false, false}));
  EXPECT_EQ(w.roots[2], TensorId(2));
  EXPECT_EQ(w.roots[3], TensorId(2)) << "a window on the copy";
  const GraphMemory memory = graph_memory(graph, {.copied_views = w.copied_views});
  EXPECT_EQ(memory.problem.units.size(), 2U) << "the copy and what reads it";
  EXPECT_EQ(memory.problem.values[memory.value_of[3]].bytes, 128U);
}

TEST(GraphWindows, AReshapeOfAttentionsResultIsAWindow) {
  const Graph graph = windowed_graph(R"(input %0: f32[2, 4, 6, 16] = batch "q"
%1: f32[2, 4, 6, 16], %2: f32[2, 4, 6] = attention(%0, %0, %0) {causal=true, scale=0.25} | forward ""
%3: f32[2, 6, 4, 16] = transpose(%1) {permutation=[0, 2, 1, 3]} | forward ""
%4: f32[2, 6, 64] = reshape(%3) {shape=[2, 6, 64]} | forward ""
return %4
)");
  const GraphWindows w = graph_windows(graph);
  EXPECT_EQ(w.windows[1].strides, (Shape{384, 16, 64, 1})) << "as projections write heads";
  EXPECT_EQ(w.windows[2].strides, (Shape{24, 6, 1}));
  EXPECT_EQ(w.copied_views, std::vector<bool>(3, false));
  EXPECT_EQ(w.roots[4], TensorId(1));
}

// What a 1x1 convolution makes by a matmul lies channels-last, and a recorded convolution wants it contiguous.
std::vector<bool> copied_where(std::string_view made, std::string_view readers) {
  return graph_windows(windowed_graph(str(R"(input %0: f32[2, 8, 4] = parameter "rows"
input %1: f32[4, 1, 3, 3] = parameter "weight"
{}%3: f32[2, 4, 8] = transpose(%2) {{permutation=[0, 2, 1]}} | forward ""
%4: f32[2, 4, 4, 2] = reshape(%3) {{shape=[2, 4, 4, 2]}} | forward ""
{})",
                                          made, readers)))
      .copied_views;
}

TEST(GraphWindows, WhatSeveralCallsWantContiguousIsCopiedOnce) {
  constexpr std::string_view kMade = "%2: f32[2, 8, 4] = exp(%0) | forward \"\"\n";
  constexpr std::string_view kCall =
      "%{}: f32[2, 4, 4, 2] = aten::convolution(%4, %1, none, [1, 1], [1, 1], [1, 1], false, [0, 0], 4) -> % | forward "
      "\"\"\n";
  const std::string once = str(kCall, 5), twice = once + str(kCall, 6);
  EXPECT_EQ(copied_where(kMade, twice + "return %5\nreturn %6\n"),
            (std::vector<bool>{false, false, true, false, false}));
  EXPECT_EQ(copied_where(kMade, once + "return %5\n"), std::vector<bool>(4, false)) << "one call's own copy is as good";
  EXPECT_EQ(
      copied_where(kMade, twice + "%7: f32[2, 4, 4, 2] = exp(%4) | forward \"\"\nreturn %5\nreturn %6\nreturn %7\n"),
      std::vector<bool>(6, false))
      << "a kernel reads it as it lies";
  EXPECT_EQ(copied_where(kMade, twice + "return %5\nreturn %6\nreturn %2\n"), std::vector<bool>(5, false))
      << "it stays beside a copy";
}

// An exchange that goes on beside other work has no scratch memory for a copy; one that blocks has.
TEST(GraphWindows, WhatIsSentBesideOtherWorkIsCopied) {
  constexpr std::string_view kSent = R"(mesh tp=2
input %0: f32[4, 2, 8] = batch "x"
%1: f32[2, 4, 8] = transpose(%0) {permutation=[1, 0, 2]} | forward ""
%2: f32[4, 8] = reduce_scatter(%1) {axes=[0], ranks=2, reduce="sum"} | forward ""
)";
  EXPECT_EQ(graph_windows(windowed_graph(str("{}return %2\n", kSent))).copied_views, std::vector<bool>(2, false));
  const Graph beside = windowed_graph(str("{}%3: f32[4, 8] = wait(%2, %1) | forward \"\"\nreturn %3\n", kSent));
  EXPECT_EQ(graph_windows(beside).copied_views, (std::vector<bool>{true, false, false}));
}

TEST(GraphWindows, WhatTheProgramOwnsIsNotCopiedForCalls) {
  const Graph graph = windowed_graph(R"(input %0: f32[2, 4, 2, 4] = batch "x"
input %1: f32[4, 1, 3, 3] = parameter "weight"
%2: f32[2, 4, 4, 2] = transpose(%0) {permutation=[0, 1, 3, 2]} | forward ""
%3: f32[2, 4, 4, 2] = aten::convolution(%2, %1, none, [1, 1], [1, 1], [1, 1], false, [0, 0], 4) -> % | forward ""
%4: f32[2, 4, 4, 2] = aten::convolution(%2, %1, none, [1, 1], [1, 1], [1, 1], false, [0, 0], 4) -> % | forward ""
return %3
return %4
)");
  EXPECT_EQ(graph_windows(graph).copied_views, std::vector<bool>(3, false));
}

}  // namespace
}  // namespace stepc
