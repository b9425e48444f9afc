#include "passes/fusion/fuse.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "base/text.h"
#include "loops/lower/lower.h"
#include "ops/graph_builder.h"
#include "passes/pass.h"
#include "passes/rewrite/decompose.h"

namespace stepc {
namespace {

TensorId input(GraphBuilder& b, InputKind kind, TensorType type) {
  const std::string key = std::to_string(b.graph().inputs.size());
  return b.graph().add_input({kind, key, {}, {}, 0}, std::move(type));
}

std::set<std::optional<uint32_t>> groups_of(const Graph& graph) {
  std::set<std::optional<uint32_t>> groups;
  for (const Node& node : graph.nodes) groups.insert(node.group);
  return groups;
}

// Reads gradient, mean, mean square and parameter, writes three of them, and computes its numbers itself.
TEST(Fuse, AParametersUpdateIsOneKernel) {
  GraphBuilder b;
  std::vector<TensorId> in;
  for (int k = 0; k < 4; ++k) in.push_back(input(b, InputKind::kParameter, {DType::kBF16, {48, 32}}));
  for (int k = 0; k < 6; ++k) in.push_back(input(b, InputKind::kScalar, {DType::kF64, {}}));
  const std::vector<TensorId> now = b.add_all("adamw_update", in);
  for (size_t k = 0; k < 3; ++k) {
    GraphOutput output;
    output.kind = GraphOutput::Kind::kUpdate;
    output.input = static_cast<uint32_t>(k == 0 ? 0 : k + 1);
    output.tensor = now[k];
    b.graph().outputs.push_back(output);
  }
  const Graph fused = fuse(decompose(b.take()));
  verify_stage(fused, Stage::kFused);
  EXPECT_EQ(groups_of(fused), (std::set<std::optional<uint32_t>>{0}));
  const GroupGraph kernel = extract_groups(fused).at(0);
  EXPECT_EQ(kernel.inputs.size(), 10U);
  EXPECT_EQ(kernel.outputs.size(), 3U);
}

// The updates of parameters behind the clip's scale, which follows from all gradients; with a count of steps each.
constexpr int64_t kParameters = 9;
Graph clipped_updates(bool clips) {
  GraphBuilder b;
  b.set_source({Phase::kUpdate, ""});
  std::vector<TensorId> gradients, squares;
  std::vector<Shape> shapes;
  for (int64_t k = 0; k < kParameters; ++k) shapes.push_back(k % 2 == 0 ? Shape{48, 32} : Shape{32});
  for (const Shape& shape : shapes) {
    const TensorId x = input(b, InputKind::kBatch, {DType::kF32, shape});
    b.set_source({Phase::kBackward, ""});
    gradients.push_back(b.add("exp", {x}));
    b.set_source({Phase::kUpdate, ""});
    Shape all;
    for (size_t d = 0; d < shape.size(); ++d) all.push_back(static_cast<int64_t>(d));
    squares.push_back(b.reshape(b.sum(b.add("square", {gradients.back()}), all), {1}));
  }
  const TensorId norm = b.add("sqrt", {b.sum(b.add("concat", squares, {{"dim", int64_t{0}}}), {0})});
  const TensorId scale = b.add("reciprocal", {norm});
  std::vector<TensorId> numbers;
  for (int k = 0; k < 5; ++k) numbers.push_back(input(b, InputKind::kScalar, {DType::kF64, {}}));
  const auto update = [&](TensorId of, TensorId now) {
    GraphOutput output;
    output.kind = GraphOutput::Kind::kUpdate;
    output.input = b.graph().tensors[of.index()].place;
    output.tensor = now;
    b.graph().outputs.push_back(output);
  };
  for (size_t k = 0; k < shapes.size(); ++k) {
    const TensorId step = input(b, InputKind::kOptimizerState, {DType::kF64, {}});
    const TensorId steps = b.add("add", {step, b.full(1, DType::kF64)});
    update(step, steps);
    std::vector<TensorId> in = {input(b, InputKind::kParameter, {DType::kF32, shapes[k]})};
    in.push_back(clips ? b.add("mul", {gradients[k], scale}) : gradients[k]);
    for (int moment = 0; moment < 2; ++moment)
      in.push_back(input(b, InputKind::kOptimizerState, {DType::kF32, shapes[k]}));
    const std::vector<TensorId> state = in;
    in.push_back(steps);
    in.insert(in.end(), numbers.begin(), numbers.end());
    const std::vector<TensorId> now = b.add_all("adamw_update", in);
    for (size_t o = 0; o < 3; ++o) update(state[o == 0 ? 0 : o + 1], now[o]);
  }
  if (!clips) {
    b.graph().outputs.emplace_back();
    b.graph().outputs.back().tensor = norm;
  }
  return decompose(b.take());
}

TEST(Fuse, OnAGpuUpdatesBehindTheClipAreOneKernel) {
  const Graph graph = clipped_updates(true);
  const auto updates_of = [](const Graph& fused) {
    std::vector<GroupGraph> updates;
    for (const GroupGraph& kernel : extract_groups(fused)) {
      const bool is_large =
          std::ranges::any_of(kernel.outputs, [&](TensorId made) { return element_count(fused.shape(made)) > 1; });
      if (is_large && kernel.outputs.size() >= 3) updates.push_back(kernel);
    }
    return updates;
  };
  EXPECT_EQ(updates_of(fuse(graph)).size(), size_t{kParameters});
  const Graph fused = fuse(graph, {}, true);
  verify_stage(fused, Stage::kFused);
  const std::vector<GroupGraph> updates = updates_of(fused);
  ASSERT_EQ(updates.size(), 1U) << to_text(fused);
  EXPECT_EQ(updates[0].outputs.size(), size_t{3 * kParameters});
  EXPECT_EQ(lower(updates[0].graph).phases.size(), size_t{kParameters});
  EXPECT_LT(groups_of(fused).size(), groups_of(fuse(graph)).size() - 2) << "counts of steps are one kernel too";
  // Without a clip a gradient's memory is free again once its own parameter is updated.
  EXPECT_GE(updates_of(fuse(clipped_updates(false), {}, true)).size(), size_t{kParameters});
}

// Small parameters that one number scales: a loop over one is no loop over the others.
TEST(Fuse, WhatHasOnlyANumberInCommonIsNoKernel) {
  GraphBuilder b;
  const TensorId rate = input(b, InputKind::kScalar, {DType::kF32, {}});
  const TensorId scale = b.add("sub", {b.full(1, DType::kF32), rate});
  for (int k = 0; k < 3; ++k) {
    const TensorId parameter = input(b, InputKind::kParameter, {DType::kF32, {8}});
    b.graph().outputs.emplace_back();
    b.graph().outputs.back().tensor = b.add("mul", {parameter, scale});
  }
  const Graph fused = fuse(b.take());
  EXPECT_NO_THROW(verify_stage(fused, Stage::kFused));
  EXPECT_EQ(groups_of(fused).size(), 4U);  // the number, and each of the others
}

// Nor have the numbers, where the parameters alone connected them.
TEST(Fuse, NumbersThatNothingConnectsAreNoKernel) {
  GraphBuilder b;
  std::vector<TensorId> numbers;
  for (int k = 0; k < 3; ++k) numbers.push_back(b.add("sqrt", {input(b, InputKind::kScalar, {DType::kF32, {}})}));
  for (int k = 0; k < 2; ++k) {
    TensorId made = input(b, InputKind::kParameter, {DType::kF32, {8}});
    for (TensorId number : numbers) made = b.add("mul", {made, number});
    b.graph().outputs.emplace_back();
    b.graph().outputs.back().tensor = made;
  }
  const Graph fused = fuse(b.take());
  EXPECT_NO_THROW(verify_stage(fused, Stage::kFused));
  EXPECT_EQ(groups_of(fused).size(), 5U);  // each number, and each parameter
}

// A cast to a wider type is not written for the next kernel to read: each reads the narrow one.
TEST(Fuse, AWideningCastIsMadeByEachReader) {
  GraphBuilder b;
  const TensorId x = input(b, InputKind::kBatch, {DType::kBF16, {1024, 128}});
  const TensorId wide = b.cast(x, DType::kF32);
  const TensorId norm = b.add("sqrt", {b.sum(b.add("square", {wide}), {0, 1})});
  const TensorId scaled = b.add("div", {wide, norm});
  b.graph().outputs.emplace_back();
  b.graph().outputs.back().tensor = scaled;
  const Graph fused = fuse(b.take());
  verify_stage(fused, Stage::kFused);
  for (const GroupGraph& kernel : extract_groups(fused))
    for (TensorId read : kernel.inputs)
      EXPECT_TRUE(fused.type(read).dtype == DType::kBF16 || fused.shape(read).empty()) << kernel.group;
}

TEST(Fuse, PhasesOfAStepDoNotShareAKernel) {
  GraphBuilder b;
  const TensorId x = input(b, InputKind::kBatch, {DType::kF32, {64}});
  const TensorId y = b.add("exp", {x});
  b.set_source({Phase::kBackward, ""});
  b.graph().outputs.emplace_back();
  b.graph().outputs.back().tensor = b.add("neg", {y});
  EXPECT_EQ(groups_of(fuse(b.take())).size(), 2U);
}

// `count` products of one shape, each added to those before it, in such modules; how many kernels there are.
size_t kernels_of_sum(int count, bool is_one_module, bool keeps_products = false) {
  GraphBuilder b;
  TensorId sum;
  for (int k = 0; k < count; ++k) {
    b.set_source({Phase::kBackward, is_one_module ? "layer" : str("layer.{}", k)});
    const TensorId x = input(b, InputKind::kBatch, {DType::kF32, {8, 64}});
    const TensorId product = b.add("matmul", {x, x}, {{"transpose_a", true}});
    if (keeps_products) {
      b.graph().outputs.emplace_back();
      b.graph().outputs.back().tensor = product;
    }
    sum = k == 0 ? product : b.add("add", {sum, product});
  }
  b.graph().outputs.emplace_back();
  b.graph().outputs.back().tensor = sum;
  const Graph fused = fuse(b.take());
  verify_stage(fused, Stage::kFused);
  return extract_groups(fused).size();
}

// The gradient of a weight that a recurrence, or micro-batches, use again and again: in one kernel all of its parts
// would be held until the last is made.
TEST(Fuse, ASumOfWhatIsMadeOneAfterTheOtherIsNoKernel) {
  EXPECT_EQ(kernels_of_sum(8, true), 7U);
  EXPECT_EQ(kernels_of_sum(3, false), 1U) << "queries, keys and values";
  EXPECT_EQ(kernels_of_sum(8, true, true), 1U) << "they are held anyway";
}

// What is known of one graph's groups holds for the same groups of another one, and for no others.
TEST(Fuse, KnownGroupsChangeNothing) {
  KnownGroups known;
  for (const Shape& shape : {Shape{64, 32}, Shape{32, 64}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (int64_t dim = 0; dim < 2; ++dim) {
        GraphBuilder b;
        const TensorId x = input(b, InputKind::kBatch, {dtype, shape});
        const TensorId wide = b.cast(b.add("exp", {x}), DType::kF32);
        b.graph().outputs.emplace_back();
        b.graph().outputs.back().tensor = b.add("neg", {b.sum(b.add("square", {wide}), {dim})});
        const Graph graph = b.take();
        const Graph alone = fuse(graph);
        EXPECT_TRUE(fuse(graph, {}, known) == alone);
        const size_t groups = known.size();
        EXPECT_GT(groups, 0U);
        EXPECT_TRUE(fuse(graph, {}, known) == alone);
        EXPECT_EQ(known.size(), groups);
      }
    }
  }
}

}  // namespace
}  // namespace stepc
