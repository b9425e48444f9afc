// What the guards of check_indices say, of indices in range and out of it.
#include "passes/check_indices.h"

#include <string_view>

#include <gtest/gtest.h>

#include "base/check.h"
#include "base/text.h"
#include "interp/interpret.h"
#include "ops/graph_builder.h"
#include "ops/op_def.h"
#include "passes/pass.h"
#include "passes/rewrite/dead_code.h"
#include "tests/ops/op_examples.h"

namespace stepc {
namespace {

Graph checked(std::string_view text) {
  Graph graph = parse_graph(str("stepc.graph 1\n{}", text));
  verify_ops(graph);
  graph = check_indices(std::move(graph));
  verify_stage(graph, Stage::kCore);
  return graph;
}

// Whether the guard holds where the input of integers has these values. The interpreter refuses just the others.
bool holds(const Graph& whole, const std::vector<int64_t>& values) {
  Graph graph = whole;
  std::erase_if(graph.outputs, [](const GraphOutput& output) { return output.kind != GraphOutput::Kind::kGuard; });
  EXPECT_EQ(graph.outputs.size(), 1U);
  graph = dead_code(std::move(graph));
  std::vector<Array> inputs;
  for (const GraphInput& input : graph.inputs) {
    Array array(graph.type(input.tensor));
    if (!array.is_real()) {
      EXPECT_EQ(array.integers.size(), values.size());
      array.integers = values;
    }
    inputs.push_back(std::move(array));
  }
  const bool holds = interpret(graph, inputs).at(0).integer(0) != 0;
  bool runs = true;
  try {
    interpret(whole, inputs);
  } catch (const UserError&) {
    runs = false;
  }
  EXPECT_EQ(runs, holds);
  return holds;
}

TEST(CheckIndices, HoldFromZeroToTheSize) {
  const Graph graph = checked(R"(input %0: f32[4, 3] = parameter "w"
input %1: i64[2] = batch "0"
%2: f32[2, 3] = take(%0, %1) {dim=0} | forward ""
return %2
)");
  EXPECT_TRUE(holds(graph, {0, 3}));
  EXPECT_FALSE(holds(graph, {0, 4}));
  EXPECT_FALSE(holds(graph, {-1, 3}));
  EXPECT_FALSE(holds(graph, {-100, 0}));
  EXPECT_FALSE(holds(graph, {INT64_MAX, 0}));
  EXPECT_FALSE(holds(graph, {INT64_MIN, 0}));
}

TEST(CheckIndices, HoldForWhatALossIgnores) {
  const Graph graph = checked(R"(input %0: f32[2, 3] = batch "hidden"
input %1: f32[4, 3] = parameter "head"
input %2: i64[2] = batch "labels"
%3: f32[2], %4: f32[2], %5: f32[0, 3], %6: f32[0, 3] = linear_cross_entropy(%0, %1, %2) {frozen=true, gradient_dtype=f32, ignore_index=-100} | forward ""
return %3
)");
  EXPECT_TRUE(holds(graph, {-100, 3}));
  EXPECT_FALSE(holds(graph, {-100, 4}));
  EXPECT_FALSE(holds(graph, {-99, 3}));
}

TEST(CheckIndices, LookAtAWindowNotAtWhatLiesBesideIt) {
  const Graph graph = checked(R"(input %0: f32[4, 3] = parameter "w"
input %1: i32[2, 2] = batch "0"
%2: i32[2, 1] = slice(%1) {shape=[2, 1], starts=[0, 0], steps=[1, 1]} | forward ""
%3: f32[2, 1, 3] = take(%0, %2) {dim=0} | forward ""
return %3
)");
  EXPECT_TRUE(holds(graph, {0, 9, 3, -9}));
  EXPECT_FALSE(holds(graph, {9, 0, 3, 0}));
}

TEST(CheckIndices, LookAtWhatTargetsAreMadeOf) {
  // Ignored targets are row 0, as a loss's are; others must be classes.
  const Graph graph = checked(R"(input %0: f32[2, 4] = parameter "logp"
input %1: i64[2] = batch "0"
%2: i64[] = full() {dtype=i64, shape=[], value=-100} | forward ""
%3: bool[2] = ne(%1, %2) | forward ""
%4: i64[] = full() {dtype=i64, shape=[], value=0} | forward ""
%5: i64[2] = where(%3, %1, %4) | forward ""
%6: i64[2, 1] = reshape(%5) {shape=[2, 1]} | forward ""
%7: f32[2, 1] = gather(%0, %6) {dim=1} | forward ""
return %7
)");
  EXPECT_TRUE(holds(graph, {-100, 3}));
  EXPECT_FALSE(holds(graph, {-100, 4}));
  EXPECT_FALSE(holds(graph, {-1, 3}));
}

// Whatever its row says is indexed.
TEST(CheckIndices, HoldForEveryIndexedOp) {
  int ops = 0;
  for (const OpFamily& family : op_families())
    for (const OpDef& op : family.ops) {
      if (!op.index_use) continue;
      SCOPED_TRACE(op.name);
      const test::Example example = test::examples_of(op).front();
      GraphBuilder b;
      std::vector<TensorId> inputs;
      for (size_t i = 0; i < example.inputs.size(); ++i)
        inputs.push_back(b.graph().add_input({InputKind::kBatch, str("{}", i), {}, {}, 0}, example.inputs[i]));
      for (TensorId result : b.add_all(op.name, inputs, example.attrs)) {
        b.graph().outputs.emplace_back();
        b.graph().outputs.back().tensor = result;
      }
      const Graph graph = check_indices(b.take());
      const auto count = static_cast<size_t>(element_count(example.inputs[op.index_use->indices].shape));
      const AttrValue* dim = example.attrs.find("dim");
      const auto place = dim == nullptr ? 0 : static_cast<size_t>(std::get<int64_t>(*dim));
      const int64_t size = example.inputs[op.index_use->indexed].shape[place];
      EXPECT_TRUE(holds(graph, std::vector<int64_t>(count, 0)));
      EXPECT_TRUE(holds(graph, std::vector<int64_t>(count, size - 1)));
      EXPECT_FALSE(holds(graph, std::vector<int64_t>(count, size)));
      EXPECT_FALSE(holds(graph, std::vector<int64_t>(count, -1)));
      ++ops;
    }
  EXPECT_GT(ops, 6);
}

TEST(CheckIndices, NoIndicesAreInRange) {
  const Graph graph = checked(R"(input %0: f32[4, 3] = parameter "w"
input %1: i64[0] = batch "0"
%2: f32[0, 3] = take(%0, %1) {dim=0} | forward ""
return %2
)");
  EXPECT_TRUE(holds(graph, {}));
}

}  // namespace
}  // namespace stepc
