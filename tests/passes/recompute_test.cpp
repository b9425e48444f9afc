// recompute() on random training steps: the same meaning bit by bit, never a higher peak, budgets met or the reason
// said.
#include "passes/recompute.h"

#include <algorithm>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "base/text.h"
#include "interp/interpret.h"
#include "memory/graph_memory.h"
#include "memory/graph_windows.h"
#include "memory/order/plan_order.h"
#include "ops/graph_builder.h"
#include "ops/op_def.h"
#include "passes/fusion/fuse.h"
#include "tests/interp/random_inputs.h"

namespace stepc {
namespace {

// Layers of matmuls, activations, norms and dropout; backward work that reads some of what they made, last first.
Graph random_step(uint64_t seed, bool opaque = false) {
  std::mt19937_64 random(seed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  GraphBuilder b;
  const Shape shape = {8, 8};
  const TensorId rng = b.graph().add_input({InputKind::kRng, "", {}, {}, 0}, {DType::kI64, {2}});
  TensorId x = b.graph().add_input({InputKind::kBatch, "x", {}, {}, 0}, {DType::kF32, shape});
  std::vector<TensorId> weights, saved;
  const size_t layers = 2 + below(6);
  for (size_t i = 0; i < layers; ++i)
    weights.push_back(b.graph().add_input({InputKind::kParameter, str("{}", i), {}, {}, 0}, {DType::kF32, shape}));
  int64_t stream = 0;
  for (size_t layer = 0; layer < layers; ++layer) {
    b.set_source({Phase::kForward, str("layer.{}", layer)});
    const TensorId matmul =
        b.add("matmul", {x, weights[layer]}, {{"transpose_a", false}, {"transpose_b", below(2) == 0}});
    const TensorId active = b.add(below(2) == 0 ? "tanh" : "gelu", {matmul});
    saved.insert(saved.end(), {matmul, active});
    TensorId result = active;
    if (below(2) == 0) {
      const TensorId draw =
          b.add("random_uniform", {rng}, {{"shape", shape}, {"dtype", DType::kF32}, {"stream", stream++}});
      const TensorId mask = b.cast(b.add("lt", {draw, b.full(0.7, DType::kF32)}), DType::kF32);
      result = b.add("mul", {result, mask});
      saved.insert(saved.end(), {mask, result});
    }
    if (below(2) == 0) {
      result = b.add("softmax", {result}, {{"dim", int64_t{1}}});
      saved.push_back(result);
    }
    if (opaque) {
      Node node;
      node.op = "aten::frob";
      node.inputs = {result};
      node.aten.emplace();
      node.aten->args = node.aten->results = {ValueId(0)};
      node.aten->draws = true;
      result = b.add_aten(node, {{DType::kF32, shape}})[0];
      saved.push_back(result);
    }
    x = b.add("add", {x, result});
  }
  TensorId gradient = x;
  for (size_t layer = layers; layer-- > 0;) {
    b.set_source({Phase::kBackward, str("layer.{}", layer)});
    for (size_t s = saved.size() * layer / layers; s < saved.size() * (layer + 1) / layers; ++s)
      if (below(4) != 0) gradient = b.add("mul", {gradient, saved[s]});
    gradient = b.add("matmul", {gradient, weights[layer]}, {{"transpose_a", false}, {"transpose_b", true}});
    b.set_source({Phase::kUpdate, str("layer.{}", layer)});
    const TensorId updated = b.add("sub", {weights[layer], gradient});
    b.graph().outputs.push_back({GraphOutput::Kind::kUpdate, updated, static_cast<uint32_t>(layer + 2), {}, {}, {}});
  }
  b.graph().outputs.push_back({GraphOutput::Kind::kReturn, x, 0, {}, {}, {}});
  Graph graph = b.take();
  verify_ops(graph);
  return graph;
}

uint64_t peak_of(const Graph& core) {
  const Graph graph = fuse(core);
  const GraphMemory memory = graph_memory(graph, {.copied_views = graph_windows(graph).copied_views});
  return plan_order(memory.problem).peak_bytes;
}

void expect_right(const Graph& before, const RecomputeResult& result, uint64_t seed) {
  verify_ops(result.graph);
  EXPECT_EQ(result.peak_before, peak_of(before));
  EXPECT_EQ(result.peak_after, peak_of(result.graph));
  EXPECT_LE(result.peak_after, result.peak_before);
  EXPECT_EQ(result.graph.nodes.size(), before.nodes.size() + result.nodes);
  EXPECT_EQ(result.nodes == 0, result.extra_seconds == 0);
  const std::vector<Array> inputs = test::random_inputs(before, seed, 1000);
  const std::vector<Array> expected = interpret(before, inputs);
  const std::vector<Array> seen = interpret(result.graph, inputs);
  ASSERT_EQ(seen.size(), expected.size());
  for (size_t i = 0; i < seen.size(); ++i) ASSERT_TRUE(same_bits(seen[i], expected[i])) << "output " << i;
}

TEST(Recompute, KeepsTheMeaningAndMeetsBudgetsOrSaysWhyNot) {
  size_t met = 0;
  size_t refused = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = random_step(seed);
    RecomputeOptions options;
    options.budget_bytes = peak_of(graph) * (2 + seed % 8) / 10;
    const RecomputeResult result = recompute(graph, options);
    expect_right(graph, result, seed);
    if (HasFatalFailure()) return;
    EXPECT_EQ(result.why_not.empty(), result.peak_after <= *options.budget_bytes);
    (result.why_not.empty() ? met : refused) += 1;
    EXPECT_TRUE(recompute(graph, options).graph == result.graph) << "not deterministic";
  }
  EXPECT_GT(met, 15U);
  EXPECT_GT(refused, 5U);
}

TEST(Recompute, WithoutABudgetItStaysWithinTheGivenTime) {
  size_t lower = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = random_step(500 + seed);
    RecomputeOptions options;
    options.most_extra = 0.01 * static_cast<double>(1 + seed % 20);
    const RecomputeResult result = recompute(graph, options);
    expect_right(graph, result, seed);
    if (HasFatalFailure()) return;
    EXPECT_LE(result.extra_seconds, options.most_extra * result.step_seconds);
    EXPECT_EQ(result.why_not, "");
    lower += result.peak_after < result.peak_before ? 1 : 0;
  }
  EXPECT_GT(lower, 15U);
}

TEST(Recompute, NothingHappensWhereTheBudgetIsMetAnyway) {
  const Graph graph = random_step(1);
  RecomputeOptions options;
  options.budget_bytes = peak_of(graph);
  const RecomputeResult result = recompute(graph, options);
  EXPECT_TRUE(result.graph == graph);
  EXPECT_EQ(result.nodes, 0U);
}

// Draws of a stream are recomputed with that stream; opaque calls, which draw from the generator, run once.
TEST(Recompute, DrawsStayTheSameNumbers) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Graph graph = random_step(seed, true);
    RecomputeOptions options;
    options.budget_bytes = 0;
    const RecomputeResult result = recompute(graph, options);
    EXPECT_NE(result.why_not.find("the budget is 0 B"), std::string::npos) << result.why_not;
    const auto count = [](const Graph& of, std::string_view op) { return std::ranges::count(of.nodes, op, &Node::op); };
    EXPECT_EQ(count(result.graph, "aten::frob"), count(graph, "aten::frob"));
    std::set<int64_t> before, after;
    for (const Node& node : graph.nodes)
      if (node.op == "random_uniform") before.insert(node.attrs.get<int64_t>("stream"));
    for (const Node& node : result.graph.nodes)
      if (node.op == "random_uniform") after.insert(node.attrs.get<int64_t>("stream"));
    EXPECT_EQ(before, after);
  }
}

// A chain of matmuls: the activation between two of them is recomputed, the matmuls are not, as long as that does.
TEST(Recompute, TheCheapestGoesFirst) {
  GraphBuilder b;
  const Shape shape = {256, 256};
  TensorId x = b.graph().add_input({InputKind::kBatch, "x", {}, {}, 0}, {DType::kF32, shape});
  const TensorId weight = b.graph().add_input({InputKind::kParameter, "w", {}, {}, 0}, {DType::kF32, shape});
  std::vector<TensorId> saved;
  for (int layer = 0; layer < 8; ++layer) {
    const TensorId matmul = b.add("matmul", {x, weight}, {{"transpose_a", false}, {"transpose_b", false}});
    x = b.add("tanh", {matmul});
    saved.insert(saved.end(), {matmul, x});
  }
  b.set_source({Phase::kBackward, ""});
  for (size_t i = saved.size(); i-- > 0;) x = b.add("mul", {x, saved[i]});
  b.graph().outputs.push_back({GraphOutput::Kind::kReturn, x, 0, {}, {}, {}});
  const Graph graph = b.take();
  RecomputeOptions options;
  options.budget_bytes = peak_of(graph) * 7 / 10;
  const RecomputeResult result = recompute(graph, options);
  EXPECT_EQ(result.why_not, "");
  EXPECT_EQ(std::ranges::count(result.graph.nodes, "matmul", &Node::op), 8);
  EXPECT_GT(std::ranges::count(result.graph.nodes, "tanh", &Node::op), 8);
  EXPECT_LT(result.extra_seconds, 0.1 * result.step_seconds);
}

// Where most of what is live at the peak is in use there, recomputing the rest cannot meet the budget: nothing is fused
// and ordered to see that.
TEST(Recompute, LooksAtNoChoiceThatCannotMeetTheBudget) {
  const auto step = [](int64_t wide, bool keeps_wide) {
    GraphBuilder b;
    const auto input = [&](InputKind kind, const char* key, const Shape& shape) {
      return b.graph().add_input({kind, key, {}, {}, 0}, {DType::kF32, shape});
    };
    const auto matmul = [&](TensorId x, TensorId y) {
      return b.add("matmul", {x, y}, {{"transpose_a", false}, {"transpose_b", false}});
    };
    TensorId x = input(InputKind::kBatch, "x", {1, 16});
    const TensorId widen = input(InputKind::kParameter, "widen", {16, wide});
    const TensorId narrow = input(InputKind::kParameter, "narrow", {wide, 16});
    std::vector<TensorId> saved;
    for (int layer = 0; layer < 4; ++layer) {
      const TensorId active = b.add("tanh", {matmul(x, widen)});
      x = matmul(active, narrow);
      saved.push_back(keeps_wide ? active : b.add("tanh", {x}));
    }
    b.set_source({Phase::kBackward, ""});
    for (size_t i = saved.size(); i-- > 0;)
      x = keeps_wide ? matmul(b.add("mul", {matmul(x, widen), saved[i]}), narrow) : b.add("mul", {x, saved[i]});
    b.graph().outputs.push_back({GraphOutput::Kind::kReturn, x, 0, {}, {}, {}});
    return b.take();
  };
  RecomputeOptions options;
  const Graph in_use = step(int64_t{1} << 20, false);
  options.budget_bytes = peak_of(in_use) / 2;
  const RecomputeResult nothing = recompute(in_use, options);
  EXPECT_EQ(nothing.looks, 0U);
  EXPECT_TRUE(nothing.graph == in_use);
  EXPECT_NE(nothing.why_not.find("the lowest peak that recomputation reaches"), std::string::npos) << nothing.why_not;
  const Graph idle = step(256, true);
  options.budget_bytes = peak_of(idle) * 8 / 10;
  const RecomputeResult met = recompute(idle, options);
  EXPECT_GT(met.looks, 0U);
  EXPECT_EQ(met.why_not, "");
}

// A vision model's patches are a copy of its images: made once more where the weight's gradient wants them.
TEST(Recompute, ACopiedReshapeIsMadeTwice) {
  GraphBuilder b;
  const TensorId image = b.graph().add_input({InputKind::kBatch, "x", {}, {}, 0}, {DType::kF32, {8, 64, 2}});
  const TensorId weight = b.graph().add_input({InputKind::kParameter, "w", {}, {}, 0}, {DType::kF32, {128, 4}});
  const TensorId patches = b.reshape(b.transpose(image, {0, 2, 1}), {8, 128});
  const TensorId x = b.add("matmul", {patches, weight}, {{"transpose_a", false}, {"transpose_b", false}});
  b.set_source({Phase::kBackward, ""});
  const TensorId wide = b.add("matmul", {x, x}, {{"transpose_a", true}, {"transpose_b", false}});
  const TensorId sums = b.add("matmul", {x, wide}, {{"transpose_a", false}, {"transpose_b", false}});
  const TensorId gradient = b.add("matmul", {patches, sums}, {{"transpose_a", true}, {"transpose_b", false}});
  b.graph().outputs.push_back({GraphOutput::Kind::kReturn, gradient, 0, {}, {}, {}});
  const Graph graph = b.take();
  verify_ops(graph);
  const uint64_t kept = peak_of(graph);
  EXPECT_GE(kept, 8U * 128 * sizeof(float)) << "the copy counts";
  RecomputeOptions options;
  options.budget_bytes = 0;
  const RecomputeResult result = recompute(graph, options);
  expect_right(graph, result, 1);
  EXPECT_EQ(std::ranges::count(result.graph.nodes, "reshape", &Node::op),
            std::ranges::count(graph.nodes, "reshape", &Node::op) + (result.nodes == 0 ? 0 : 1));
}

}  // namespace
}  // namespace stepc
