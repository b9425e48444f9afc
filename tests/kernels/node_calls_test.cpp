// Which groups run node by node on chunks of their elements.
#include "kernels/node_calls.h"

#include <gtest/gtest.h>

#include "ops/op_def.h"

namespace stepc {
namespace {

std::optional<Graph> flat(std::string_view nodes) {
  const Graph group = parse_graph("stepc.graph 1\n" + std::string(nodes));
  verify_ops(group);
  std::optional<Graph> out = flat_nodes(group);
  if (out) verify_ops(*out);
  return out;
}

TEST(NodeCalls, PointwiseNodesAndSumsOfAllElementsAreOneRow) {
  const auto update = flat(R"(input %0: f32[300, 1000] = captured "0"
input %1: f32[1, 1] = captured "1"
%2: f32[300, 1000] = mul(%0, %1) | update ""
%3: bf16[300, 1000] = cast(%2) {dtype=bf16} | update ""
%4: f32[300, 1000] = mul(%2, %2) | update ""
%5: f32[] = sum(%4) {dims=[0, 1], keepdim=false} | update ""
return %3
return %5
)");
  ASSERT_TRUE(update.has_value());
  EXPECT_EQ(update->shape(update->outputs[0].tensor), (Shape{300000}));
  EXPECT_EQ(update->shape(update->inputs[1].tensor), Shape());
  EXPECT_EQ(update->nodes[3].attrs.get<Shape>("dims"), (Shape{0}));
  EXPECT_EQ(flat_nodes(*update), *update);
  // The matmul, its cast and its square at once, and one more; not of all elements.
  EXPECT_EQ(bytes_between(*update), static_cast<uint64_t>(kElementsOfChunk) * (4 + 2 + 4 + 4));
}

// The parts of a rank come in other shapes than its gradients.
TEST(NodeCalls, ViewsOfAllOfATensorAreTheTensor) {
  const auto update = flat(R"(input %0: f32[2, 150, 1000] = captured "0"
input %1: f32[300, 1000] = captured "1"
input %2: f32[1] = captured "2"
%3: f32[300, 1000] = reshape(%0) {shape=[300, 1000]} | update ""
%4: f32[] = reshape(%2) {shape=[]} | update ""
%5: f32[300, 1000] = mul(%3, %4) | update ""
%6: f32[300, 1000] = sub(%1, %5) | update ""
%7: f32[1, 300, 1000] = reshape(%6) {shape=[1, 300, 1000]} | update ""
return %7
)");
  ASSERT_TRUE(update.has_value());
  EXPECT_EQ(to_text(*update), R"(stepc.graph 1
input %0: f32[300000] = captured "0"
input %1: f32[300000] = captured "1"
input %2: f32[] = captured "2"
%3: f32[300000] = mul(%0, %2) | update ""
%4: f32[300000] = sub(%1, %3) | update ""
return %4
)");
  EXPECT_EQ(flat_nodes(*update), *update);
  // One that is a result by itself has memory of its own, which some node must write.
  EXPECT_FALSE(flat(R"(input %0: f32[4, 8] = captured "0"
%1: f32[32] = reshape(%0) {shape=[32]} | forward ""
%2: f32[4, 8] = neg(%0) | forward ""
return %1
return %2
)"));
}

TEST(NodeCalls, OtherGroupsAreNot) {
  EXPECT_FALSE(flat(R"(input %0: f32[4, 8] = captured "0"
%1: f32[4] = sum(%0) {dims=[1], keepdim=false} | forward ""
return %1
)")) << "of some elements";
  EXPECT_FALSE(flat(R"(input %0: f32[8] = captured "0"
%1: f32[] = sum(%0) {dims=[0], keepdim=false} | forward ""
%2: f32[8] = mul(%0, %1) | forward ""
return %2
)")) << "the sum is there at the end alone";
  EXPECT_FALSE(flat(R"(input %0: f32[4, 1] = captured "0"
input %1: f32[1, 4] = captured "1"
%2: f32[4, 4] = mul(%0, %1) | forward ""
return %2
)")) << "more elements than either";
  EXPECT_FALSE(flat(R"(input %0: f32[4, 8](1, 4) = captured "0"
%1: f32[4, 8] = exp(%0) | forward ""
return %1
)")) << "not in a row";
}

}  // namespace
}  // namespace stepc
