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

}  // namespace
}  // namespace stepc
