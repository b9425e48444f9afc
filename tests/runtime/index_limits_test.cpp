#include "runtime/index_limits.h"

#include <gtest/gtest.h>

#include <ATen/Functions.h>

namespace stepc {
namespace {

IndexLimit limit(size_t from, int64_t size, std::optional<int64_t> ignored = {}, std::vector<NodeId> views = {}) {
  return {TensorId(from), std::move(views), size, ignored};
}

// An embedding of a window on the batch, targets that a loss makes indices of, indices that the step computes, and a
// window that only a kernel takes, beside which there may be anything.
TEST(IndexLimits, AreThoseOfWhatTheProgramGives) {
  const Graph graph = parse_graph(R"(stepc.graph 1
input %0: f32[10, 4] = parameter "w"
input %1: i64[2, 5] = batch "0"
input %2: i32[8] = batch "1"
%3: i64[2, 4] = slice(%1) {shape=[2, 4], starts=[0, 0], steps=[1, 1]} | forward ""
%4: f32[2, 4, 4] = take(%0, %3) {dim=0} | forward ""
%5: f32[8, 4] = reshape(%4) {shape=[8, 4]} | forward ""
%6: i64[8] = cast(%2) {dtype=i64} | forward ""
%7: i64[] = full() {dtype=i64, shape=[], value=-100} | forward ""
%8: bool[8] = ne(%6, %7) | forward ""
%9: i64[] = full() {dtype=i64, shape=[], value=0} | forward ""
%10: i64[8] = where(%8, %6, %9) | forward ""
%11: i64[8, 1] = reshape(%10) {shape=[8, 1]} | forward ""
%12: f32[8, 1] = gather(%5, %11) {dim=1} | forward ""
%13: i64[8] = add(%6, %6) | forward ""
%14: f32[8, 4] = take(%0, %13) {dim=0} | forward ""
%15: i64[10] = reshape(%1) {shape=[10]} | forward "" group 0
%16: i64[5] = slice(%15) {shape=[5], starts=[5], steps=[1]} | forward "" group 0
%17: f32[5, 4] = take(%0, %16) {dim=0} | forward "" group 0
%18: f32[5, 4] = exp(%17) | forward "" group 0
return %12
return %14
return %18
)");
  KernelSources kernels{{}};
  const GraphPlan plan = plan_graph(graph, kernels, 1);
  const IndexLimit inside = limit(1, 10, {}, {NodeId(13), NodeId(12)});
  EXPECT_EQ(index_limits(plan), (std::vector<IndexLimit>{limit(3, 10), limit(2, 4, -100, {NodeId(8)}), inside}));
  const at::Tensor batch = at::cat({at::full({5}, -100, at::kLong), at::arange(5)}).view({2, 5});
  EXPECT_TRUE(indices_of(inside, graph, batch).equal(at::arange(5)));
  EXPECT_TRUE(within(inside, indices_of(inside, graph, batch)));
  EXPECT_FALSE(within(inside, indices_of(inside, graph, batch + 6)));
}

TEST(IndexLimits, HoldFromZeroToTheSizeAndForWhatIsIgnored) {
  const auto of = [](std::vector<int64_t> values, at::ScalarType type = at::kLong) {
    return at::tensor(values).to(type);
  };
  EXPECT_TRUE(within(limit(0, 4), of({0, 3})));
  EXPECT_FALSE(within(limit(0, 4), of({0, 4})));
  EXPECT_FALSE(within(limit(0, 4), of({-1, 3})));
  EXPECT_FALSE(within(limit(0, 4), of({-100})));
  EXPECT_TRUE(within(limit(0, 4, -100), of({-100, 3}, at::kInt)));
  EXPECT_FALSE(within(limit(0, 4, -100), of({-100, 4}, at::kInt)));
  EXPECT_TRUE(within(limit(0, 0), of({})));
  EXPECT_TRUE(within(limit(0, 4), of({0, 9, 3, 9}).view({2, 2}).slice(1, 0, 1))) << "a window, not what lies between";
}

}  // namespace
}  // namespace stepc
