// What is fetched early: the next row's arrays in the last sweep over a row, and only those that leave the cache.
#include "codegen/prefetch.h"

#include <gtest/gtest.h>

#include "loops/lower/lower.h"
#include "tests/codegen/groups.h"

namespace stepc {
namespace {

// The buffer and the step of each prefetch, sweep by sweep of the first phase.
std::vector<std::vector<std::pair<uint32_t, int64_t>>> by_sweep(const Graph& group) {
  const LoopProgram program = lower(decompose(group));
  const LoopPhase& phase = program.phases[0];
  std::vector<std::vector<std::pair<uint32_t, int64_t>>> out;
  std::vector<size_t> open;
  for (size_t i = 0; i < phase.instructions.size(); ++i) {
    const LoopInstruction& one = phase.instructions[i];
    if (one.op == LoopOp::kLoop && phase.variables[one.loop].vector) {
      const auto row = open.empty() ? std::nullopt : std::optional(open.back());
      out.emplace_back();
      for (const Prefetch& prefetch : prefetches_of(program, phase, row, i))
        out.back().emplace_back(phase.instructions[prefetch.access].buffer, prefetch.step);
    }
    if (one.op == LoopOp::kLoop) open.push_back(i);
    if (one.op == LoopOp::kEnd) open.pop_back();
  }
  return out;
}
using Sweep = std::vector<std::pair<uint32_t, int64_t>>;

TEST(Prefetch, TheLastSweepFetchesTheNextRow) {
  GraphBuilder b;
  const TensorId x = group_input(b, DType::kF32, {1000, 512});
  const TensorId weight = group_input(b, DType::kF32, {512});
  const TensorId norm = b.add("softmax", {x}, {{"dim", int64_t{1}}});
  group_output(b, b.add("mul", {norm, weight}));
  const auto sweeps = by_sweep(b.graph());
  ASSERT_EQ(sweeps.size(), 3U);
  EXPECT_EQ(sweeps[0], Sweep());
  EXPECT_EQ(sweeps[1], Sweep());
  EXPECT_EQ(sweeps[2], (Sweep{{0, 512}, {2, 512}})) << "not the weight, which all rows share";
}

TEST(Prefetch, ALongSweepRunsAheadOfItself) {
  GraphBuilder b;
  group_output(b, b.add("neg", {group_input(b, DType::kF32, {1 << 20})}));
  EXPECT_EQ(by_sweep(b.graph()), (std::vector<Sweep>{{{0, 1024}, {1, 1024}}}));
}

TEST(Prefetch, SmallArraysStayInTheCache) {
  GraphBuilder b;
  group_output(b, b.add("softmax", {group_input(b, DType::kF32, {100, 512})}, {{"dim", int64_t{1}}}));
  for (const Sweep& sweep : by_sweep(b.graph())) EXPECT_EQ(sweep, Sweep());
}

}  // namespace
}  // namespace stepc
