// Planned steps on random inputs, beside the interpreter: with kernels and without, twice on one arena, which holds
// nothing but NaN before each run.
#include "runtime/unit_runner.h"

#include <cstring>
#include <stdexcept>

#include <gtest/gtest.h>

#include "aten/cpu_hook.h"
#include "interp/interpret.h"
#include "runtime/blocked_matmul.h"
#include "tests/interp/random_inputs.h"
#include "tests/runtime/arrays.h"
#include "tests/runtime/random_step.h"

namespace stepc {
namespace {

// Integers choose rows of eight.
std::vector<Array> random_inputs(const Graph& graph, uint64_t seed) { return test::random_inputs(graph, seed, 8); }

// As the program holds it: with the strides of the input.
at::Tensor programs(const Array& array, const GraphInput& input) {
  at::Tensor dense = test::tensor_of(array);
  if (input.strides.empty()) return dense;
  return at::empty_strided(array.type.shape, input.strides, dense.options()).copy_(dense);
}

struct Kernels {
  const char* name;
  bool generated, micro;
};
void PrintTo(const Kernels& kernels, std::ostream* out) { *out << kernels.name; }  // NOLINT: googletest's name

class RunSteps : public ::testing::TestWithParam<Kernels> {
 protected:
  RunSteps() {
    install_cpu_hook();
    if (!GetParam().generated) kernels_.before_compile = [](const Graph&) { throw std::runtime_error("none"); };
    if (!GetParam().micro) kernels_.micro_kernels = {};
    kernels_.micro_kernels.intel = false;
  }
  GraphPlan planned(uint64_t seed) {
    return plan_graph(test::random_fused_step(seed, product_rule(kernels_.micro_kernels)), kernels_, 2);
  }

  // One step from `inputs`; every output beside the interpreter's.
  static MemoryCounts run(UnitRunner& runner, GraphPlan& plan, const std::vector<Array>& inputs, uint64_t seed,
                          RunTimes* times = nullptr) {
    const std::vector<Array> want = interpret(plan.graph, inputs);
    const ArenaLease arena;
    (*arena).grow_to(plan.arena_bytes);
    std::memset((*arena).base(), 0xFF, plan.arena_bytes);
    MemoryCounts counts;
    {
      const UnitRunner::Step step(runner, *arena);
      std::vector<at::Tensor> memory;
      for (size_t i = 0; i < inputs.size(); ++i) {
        memory.push_back(programs(inputs[i], plan.graph.inputs[i]));
        runner.bind_input(i, memory.back());
      }
      if (times != nullptr) times->begin(/*of_graph=*/true);
      const size_t half = plan.units.size() / 2;
      runner.run(0, half, times);
      runner.run(half, plan.units.size(), times);
      if (times != nullptr) times->end();
      for (size_t o = 0; o < want.size(); ++o) {
        const TensorId tensor = plan.graph.outputs[o].tensor;
        const at::Tensor& value = runner.value(tensor);
        EXPECT_LE(largest_error(test::array_of(value, plan.graph.type(tensor)), want[o]), 1e-4)
            << "output " << o << " of seed " << seed << "\n"
            << to_text(plan.graph);
        const Place& place = plan.places[tensor.index()];
        if (place.kind == Place::Kind::kInput) {
          EXPECT_EQ(value.const_data_ptr(), memory[place.input].const_data_ptr());
        }
        if (place.kind == Place::Kind::kArena) {
          EXPECT_EQ(value.const_data_ptr(), (*arena).base() + place.offset) << "output " << o << " of seed " << seed;
        }
      }
      counts = runner.memory().counts();
    }
    runner.apply_what_was_learnt(plan);
    return counts;
  }

  KernelSources kernels_{{}};
};

TEST_P(RunSteps, ComeToWhatTheInterpreterSays) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    GraphPlan plan = planned(seed);
    UnitRunner runner(plan);
    for (uint64_t k = 0; k < 3; ++k) {
      const MemoryCounts counts = run(runner, plan, random_inputs(plan.graph, 10 * seed + k), seed);
      if (k == 0) continue;  // finds out how much scratch memory ATen's calls need
      EXPECT_EQ(counts.unplanned, 0U) << "seed " << seed << ", run " << k;
      EXPECT_LE(counts.arena_peak_bytes, plan.arena_bytes) << seed;
      EXPECT_EQ(counts.kept_bytes, plan.own_bytes) << seed;
    }
    if (HasFailure()) return;
  }
}

TEST_P(RunSteps, FinishProductsWhereTheyAreMade) {
  const bool blocked = product_rule(kernels_.micro_kernels).f32;
  size_t finished = 0;
  for (uint64_t seed = 0; seed < 60; ++seed)
    for (const Unit& unit : planned(seed).units) finished += unit.products && unit.products->finishes() ? 1 : 0;
  if (GetParam().generated && blocked) {
    EXPECT_GT(finished, 20U);
  } else {
    EXPECT_EQ(finished, 0U);
  }
}

TEST_P(RunSteps, MakeProductsOfOneOperandInOneUnit) {
  const Graph graph = parse_graph(R"(stepc.graph 1
input %0: f32[40, 32] = batch "x"
input %1: f32[24, 32] = parameter "q"
input %2: f32[32, 16] = parameter "k"
%3: f32[40, 24] = matmul(%0, %1) {transpose_a=false, transpose_b=true} | forward "" group 0
%4: f32[40, 16] = matmul(%0, %2) {transpose_a=false, transpose_b=false} | forward "" group 0
%5: f32[24, 16] = matmul(%3, %4) {transpose_a=true, transpose_b=false} | backward ""
return %4
return %5
)");
  GraphPlan plan = plan_graph(graph, kernels_, 2);
  ASSERT_EQ(plan.units.size(), 2U);
  const bool blocked = product_rule(kernels_.micro_kernels).f32;
  EXPECT_EQ(plan.units[0].products.has_value(), blocked);
  EXPECT_TRUE(plan.fallbacks.empty());
  EXPECT_EQ(plan.units[0].scratch_bytes > 0, blocked);
  UnitRunner runner(plan);
  for (int k = 0; k < 2; ++k) {
    const MemoryCounts counts = run(runner, plan, random_inputs(plan.graph, 1), 1);
    EXPECT_TRUE(k == 0 || counts.unplanned == 0) << counts.unplanned;
  }
}

TEST_P(RunSteps, WriteDownWhenEveryUnitRan) {
  GraphPlan plan = planned(1);
  UnitRunner runner(plan);
  RunTimes times;
  for (int k = 0; k < 2; ++k) run(runner, plan, random_inputs(plan.graph, 1), 1, &times);
  EXPECT_TRUE(times.of_graph());
  ASSERT_EQ(times.instructions().size(), plan.units.size()) << "of the last run alone";
  double end = 0;
  for (size_t u = 0; u < plan.units.size(); ++u) {
    const InstructionTime& time = times.instructions()[u];
    EXPECT_EQ(time.index, u);
    EXPECT_LE(end, time.begin_seconds);
    EXPECT_LE(time.begin_seconds, time.end_seconds);
    end = time.end_seconds;
  }
  EXPECT_LE(end, times.seconds());
}

TEST_P(RunSteps, WindowsPointIntoWhatTheyShow) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    GraphPlan plan = planned(seed);
    UnitRunner runner(plan);
    const ArenaLease arena;
    const UnitRunner::Step step(runner, *arena);
    const std::vector<Array> inputs = random_inputs(plan.graph, seed);
    for (size_t i = 0; i < inputs.size(); ++i) runner.bind_input(i, programs(inputs[i], plan.graph.inputs[i]));
    runner.run(0, plan.units.size());
    for (size_t t = 0; t < plan.places.size(); ++t) {
      if (plan.places[t].kind != Place::Kind::kView) continue;
      const at::Tensor& window = runner.value(TensorId(t));
      const at::Tensor& shown = runner.value(plan.graph.producer(TensorId(t))->inputs[0]);
      if (!window.defined() || !shown.defined()) continue;
      EXPECT_TRUE(window.is_alias_of(shown)) << seed << " %" << t;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, RunSteps,
                         ::testing::Values(Kernels{"all", true, true}, Kernels{"generated", true, false},
                                           Kernels{"blocked", false, true}, Kernels{"aten", false, false}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace stepc
