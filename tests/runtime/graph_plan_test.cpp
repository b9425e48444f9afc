// Where the tensors of a planned Graph lie: by hand on a small step, and on random ones every promise of the header,
// with lifetimes that are found here once more.
#include "runtime/graph_plan.h"

#include <algorithm>
#include <stdexcept>

#include <gtest/gtest.h>

#include "ir/alignment.h"
#include "tests/runtime/random_step.h"

namespace stepc {
namespace {

using Kind = Place::Kind;

TEST(GraphPlan, PlacesOfASmallStep) {
  const Graph graph = parse_graph(R"(stepc.graph 1
input %0: f32[64, 64] = parameter "w"
input %1: f32[32, 64] = batch "0"
%2: f32[64, 64] = transpose(%0) {permutation=[1, 0]} | forward "layer"
%3: f32[32, 64] = matmul(%1, %2) {transpose_a=false, transpose_b=false} | forward "layer"
%4: f32[32, 64] = tanh(%3) | forward "layer" group 0
%5: f32[32, 64] = mul(%4, %4) | forward "layer" group 0
%6: f32[64, 64] = matmul(%5, %1) {transpose_a=true, transpose_b=false} | backward "layer"
%7: f32[64, 64] = sub(%0, %6) | update "" group 1
%8: f32[] = sum(%5) {dims=[0, 1], keepdim=false} | forward "" group 2
update %0 = %7
return %8
)");
  KernelSources kernels{{}};
  const GraphPlan plan = plan_graph(graph, kernels, 1);
  const auto kind = [&](size_t tensor) { return plan.places[tensor].kind; };
  ASSERT_EQ(plan.units.size(), 5U) << "the window is no unit";
  EXPECT_EQ(kind(0), Kind::kNowhere) << "inputs are the program's";
  EXPECT_EQ(kind(2), Kind::kView);
  EXPECT_EQ(kind(3), Kind::kArena);
  EXPECT_EQ(kind(4), Kind::kNowhere) << "inside of a kernel";
  EXPECT_EQ(kind(5), Kind::kArena);
  EXPECT_EQ(plan.places[5].offset, plan.places[3].offset) << "pointwise work over what it reads last";
  EXPECT_EQ(kind(6), Kind::kArena);
  EXPECT_EQ(kind(7), Kind::kInput);
  EXPECT_EQ(plan.places[7].input, 0U);
  EXPECT_EQ(kind(8), Kind::kOwn);
  EXPECT_EQ(plan.own_bytes, 64U);
  EXPECT_EQ(plan.kernels(), 3U);
  EXPECT_TRUE(plan.fallbacks.empty());
  const auto& group = *std::ranges::find_if(plan.units, [](const Unit& unit) { return unit.nodes.size() == 2; });
  EXPECT_EQ(group.inputs, std::vector<TensorId>{TensorId(3)});
  EXPECT_EQ(group.outputs, std::vector<TensorId>{TensorId(5)});
  EXPECT_GE(plan.arena_bytes, 32U * 64 * 4 + 64 * 64 * 4);
}

// A stretch of the arena while units [first, last] run.
struct Stretch {
  TensorId tensor;  // invalid: scratch memory
  uint64_t begin, end;
  size_t first, last;
};

class PlannedSteps : public ::testing::TestWithParam<bool> {
 protected:
  // The step of a seed, with kernels or as ATen calls alone.
  GraphPlan planned(uint64_t seed) {
    KernelSources kernels{{}};
    if (!GetParam()) kernels.before_compile = [](const Graph&) { throw std::runtime_error("none"); };
    kernels.micro_kernels.intel = false;
    GraphPlan plan = plan_graph(test::random_fused_step(seed, product_rule(kernels.micro_kernels)), kernels, 2);
    EXPECT_EQ(plan.fallbacks.empty(), GetParam()) << plan.fallbacks.front();
    return plan;
  }
  static TensorId root_of(const GraphPlan& plan, TensorId tensor) {
    while (plan.places[tensor.index()].kind == Kind::kView) tensor = plan.graph.producer(tensor)->inputs[0];
    return tensor;
  }
  static std::vector<Stretch> stretches(const GraphPlan& plan) {
    std::vector<size_t> last(plan.graph.tensors.size(), 0);
    for (size_t u = 0; u < plan.units.size(); ++u)
      for (TensorId input : plan.units[u].inputs) last[root_of(plan, input).index()] = u;
    for (const GraphOutput& output : plan.graph.outputs)
      if (output.tensor.valid()) last[root_of(plan, output.tensor).index()] = plan.units.size();
    std::vector<Stretch> out;
    for (size_t u = 0; u < plan.units.size(); ++u) {
      const Unit& unit = plan.units[u];
      for (TensorId tensor : unit.outputs) {
        const Place& place = plan.places[tensor.index()];
        if (place.kind != Kind::kArena) continue;
        const auto bytes = static_cast<uint64_t>(bytes_of(plan.graph.type(tensor)));
        out.push_back({tensor, place.offset, place.offset + bytes, u, std::max(u, last[tensor.index()])});
      }
      if (unit.scratch_bytes != 0)
        out.push_back({TensorId(), unit.scratch_offset, unit.scratch_offset + unit.scratch_bytes, u, u});
    }
    return out;
  }
  // `after` takes over the memory of `before` in the unit that reads that last.
  static bool takes_over(const GraphPlan& plan, const Stretch& before, const Stretch& after) {
    if (!before.tensor.valid() || !after.tensor.valid() || before.last != after.first || before.begin != after.begin)
      return false;
    const auto value = [&](TensorId tensor) { return plan.memory.value_of[tensor.index()]; };
    const std::vector<Reuse>& reuses = plan.memory.problem.units[after.first].reuses;
    return std::ranges::find(reuses, Reuse{value(before.tensor), value(after.tensor)}) != reuses.end();
  }
};

TEST_P(PlannedSteps, NothingOverlapsWhileItIsAlive) {
  int taken_over = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const GraphPlan plan = planned(seed);
    const std::vector<Stretch> all = stretches(plan);
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_LE(all[i].end, plan.arena_bytes) << seed;
      ASSERT_EQ(aligned(all[i].begin), all[i].begin) << seed;
      for (size_t j = 0; j < i; ++j) {
        const Stretch &a = all[j], &b = all[i];  // a is made no later
        const bool meet = a.begin < b.end && b.begin < a.end && b.first <= a.last;
        if (!meet) continue;
        ASSERT_TRUE(takes_over(plan, a, b))
            << "seed " << seed << ": %" << a.tensor.value << " and %" << b.tensor.value << "\n"
            << to_text(plan.graph);
        ++taken_over;
      }
    }
  }
  EXPECT_EQ(taken_over > 20, GetParam()) << taken_over;
}

TEST_P(PlannedSteps, EveryNodeRunsOnceAndEveryTensorHasItsPlace) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const GraphPlan plan = planned(seed);
    std::vector<int> runs(plan.graph.nodes.size(), 0);
    std::vector<bool> made(plan.graph.tensors.size(), false);
    for (const GraphInput& input : plan.graph.inputs) made[input.tensor.index()] = true;
    for (const Unit& unit : plan.units) {
      for (NodeId node : unit.nodes) ++runs[node.index()];
      for (TensorId input : unit.inputs)
        EXPECT_TRUE(made[root_of(plan, input).index()]) << seed << " reads %" << input.value << " before it is made";
      for (TensorId output : unit.outputs) {
        made[output.index()] = true;
        EXPECT_NE(plan.places[output.index()].kind, Kind::kView) << seed;
      }
    }
    for (size_t n = 0; n < runs.size(); ++n) {
      const Node& node = plan.graph.nodes[n];
      const Kind kind = plan.places[node.outputs[0].index()].kind;
      EXPECT_EQ(runs[n], kind == Kind::kView ? 0 : 1) << seed << " " << node.op;
      EXPECT_TRUE(kind != Kind::kView || op_def(node.op).has(Trait::kView)) << node.op;
    }
    for (const GraphOutput& output : plan.graph.outputs) {
      const TensorId root = root_of(plan, output.tensor);
      const bool is_input = plan.graph.producer(root) == nullptr;
      EXPECT_EQ(plan.places[root.index()].kind == Kind::kNowhere, is_input) << seed;
      const Place& place = plan.places[output.tensor.index()];
      if (place.kind == Kind::kInput) {
        EXPECT_EQ(output.kind, GraphOutput::Kind::kUpdate) << "only updates lie in the program's memory";
        EXPECT_TRUE(plan.graph.inputs[place.input].strides.empty()) << "kernels write dense memory";
      }
    }
  }
}

TEST_P(PlannedSteps, MoreScratchMemoryMovesTheRest) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    GraphPlan plan = planned(seed);
    const uint64_t before = plan.arena_bytes;
    std::vector<uint64_t> bytes(plan.units.size(), 0);
    grow_scratch(plan, bytes);
    EXPECT_EQ(plan.arena_bytes, before) << "nothing wants more";
    bytes[plan.units.size() / 2] = 100'000;
    grow_scratch(plan, bytes);
    EXPECT_GE(plan.units[plan.units.size() / 2].scratch_bytes, 100'000U);
    EXPECT_GE(plan.arena_bytes, 100'000U);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, PlannedSteps, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "generated" : "aten"; });

}  // namespace
}  // namespace stepc
