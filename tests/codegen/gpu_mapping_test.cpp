#include "codegen/gpu_mapping.h"

#include <gtest/gtest.h>

#include "codegen/cuda_source.h"
#include "tests/codegen/groups.h"
#include "tests/codegen/model_groups.h"
#include "tests/codegen/random_program.h"
#include "tests/codegen/run_gpu.h"

namespace stepc {
namespace {

Graph softmax_group(int64_t rows, int64_t columns) {
  GraphBuilder b;
  group_output(b, b.add("softmax", {group_input(b, DType::kBF16, {rows, columns})}, {{"dim", int64_t{1}}}));
  return decompose(b.take());
}
// A sum over each row reads it backwards, so that not each lane what it will write.
Graph backwards_group(int64_t rows, int64_t columns) {
  GraphBuilder b;
  const TensorId x = group_input(b, DType::kF32, {rows, columns});
  const TensorId other = b.add("mul", {b.add("reverse", {x}, {{"dims", Shape{1}}}), b.add("exp", {x})});
  group_output(b, b.add("sub", {x, b.sum(other, {1}, true)}));
  return b.take();
}
Graph column_sums_group(int64_t rows, int64_t columns) {
  GraphBuilder b;
  group_output(b, b.sum(group_input(b, DType::kF32, {rows, columns}), {0}));
  return b.take();
}
GpuFindings findings_of(const Graph& group, const GpuProgram& program) {
  GpuBuffers buffers(group, program, random_arrays(group, 1, false));
  return interpret(program, buffers.spans());
}
const NamedGroup& named(const std::vector<NamedGroup>& groups, const std::string& name) {
  return *std::ranges::find(groups, name, &NamedGroup::name);
}

TEST(GpuMapping, GroupsOfAStepAreLikeTheInterpreter) {
  for (const NamedGroup& group : step_groups()) {
    SCOPED_TRACE(group.name);
    expect_gpu_program(group.graph, random_arrays(group.graph, 1, false), gpu_program(group.graph));
    if (HasFatalFailure()) return;
  }
}

TEST(GpuMapping, RandomProgramsAreLikeTheInterpreter) {
  constexpr uint64_t kPrograms = 300;
  for (uint64_t seed = 0; seed < kPrograms; ++seed) {
    SCOPED_TRACE(seed);
    for_each_random_group(seed, [&](const Graph& group, const std::vector<Array>& inputs) {
      if (!HasFatalFailure()) expect_gpu_program(group, inputs, gpu_program(group));
    });
    if (HasFatalFailure()) return;
  }
}

TEST(GpuMapping, RowsAreHeldInRegistersElseInSharedMemoryElseReadAgain) {
  const std::string narrow = to_text(gpu_program(softmax_group(4096, 2048)));
  EXPECT_NE(narrow.find("kernel 0: 4096 teams of 128 lanes, width 8, 4096 blocks of 128"), std::string::npos) << narrow;
  EXPECT_NE(narrow.find("16 in registers"), std::string::npos) << narrow;
  EXPECT_EQ(narrow.find("in shared memory"), std::string::npos) << narrow;
  const GpuProgram shared = gpu_program(softmax_group(3, 16400));
  EXPECT_NE(to_text(shared).find("16400 in shared memory"), std::string::npos) << to_text(shared);
  EXPECT_EQ(findings_of(softmax_group(3, 16400), shared).problem, "");
  const GpuProgram again = gpu_program(softmax_group(2, 50304));
  EXPECT_EQ(to_text(again).find(" in "), std::string::npos) << to_text(again);
}

TEST(GpuMapping, ChunksOfASumOverRowsFollowTheGpu) {
  const Graph group = column_sums_group(100000, 256);
  for (int64_t multiprocessors : {8, 132}) {
    GpuShape gpu;
    gpu.multiprocessors = multiprocessors;
    const GpuProgram program = gpu_program(group, gpu);
    EXPECT_LE(program.kernels[0].teams, 4 * multiprocessors);
    EXPECT_GT(program.kernels[0].teams, 3 * multiprocessors);
    EXPECT_EQ(program.kernels.size(), 2U);
  }
}

TEST(GpuMapping, ALaneReadsAndWritesSixteenBytes) {
  GraphBuilder b;
  const TensorId x = group_input(b, DType::kBF16, {512, 64});
  group_output(b, b.add("silu", {x}));
  const GpuProgram program = gpu_program(decompose(b.take()));
  EXPECT_EQ(program.kernels[0].width, 8);
  EXPECT_TRUE(program.kernels[0].over_grid);
}

TEST(GpuMapping, StreamsTouchFewSectorsMoreThanTheyMust) {
  std::vector<NamedGroup> groups = {{"softmax", softmax_group(64, 2048)},
                                    {"column sums", column_sums_group(2048, 256)}};
  const std::vector<NamedGroup> all = step_groups();
  for (const char* name : {"adamw", "softmax bf16 64", "layer norm f32 64", "layer norm backward bf16 64"})
    groups.push_back(named(all, name));
  for (const NamedGroup& group : groups) {
    const GpuFindings found = findings_of(group.graph, gpu_program(group.graph));
    EXPECT_EQ(found.problem, "") << group.name;
    EXPECT_GT(found.least_sectors, 0) << group.name;
    EXPECT_LE(static_cast<double>(found.sectors), 1.1 * static_cast<double>(found.least_sectors)) << group.name;
  }
}

void expect_in_place(const Graph& group) {
  const GpuProgram program = gpu_program(group);
  ASSERT_FALSE(program.loops.in_place.empty());
  const std::vector<Array> inputs = random_arrays(group, 1, false);
  GpuBuffers apart(group, program, inputs);
  ASSERT_EQ(interpret(program, apart.spans()).problem, "");
  const std::vector<Array> want = apart.outputs();
  GpuBuffers buffers(group, program, inputs);
  std::vector<std::span<uint8_t>> spans = buffers.spans();
  std::vector<bool> is_taken(spans.size(), false);
  for (const auto& [input, output] : program.loops.in_place) {
    if (is_taken[input] || is_taken[output]) continue;
    is_taken[input] = is_taken[output] = true;
    spans[output] = spans[input];
  }
  ASSERT_EQ(interpret(program, spans).problem, "");
  for (size_t k = 0; k < want.size(); ++k) {
    const std::span<uint8_t> have = spans[inputs.size() + k];
    EXPECT_TRUE(same_bits(from_bytes(want[k].type, {have.begin(), have.end()}), want[k])) << k;
  }
}

TEST(GpuMapping, ResultsMayLieWhereAnInputLies) {
  expect_in_place(adamw_group(1000));
  expect_in_place(updates_group({{40, 30}, {7}, {1200}, {40, 30}}));
}

// Each lane writes what it alone has read, in one sweep after the other: in registers, in shared memory, or read again.
TEST(GpuMapping, ResultsOfRowsMayLieWhereTheyWereRead) {
  for (const int64_t columns : {5, 64, 2048, 16400, 50304}) {
    SCOPED_TRACE(columns);
    expect_in_place(softmax_group(3, columns));
    expect_in_place(loss_rows({{"ignore_index", int64_t{2}}}, DType::kBF16, 3, columns, 5));
  }
  EXPECT_TRUE(gpu_program(backwards_group(3, 64)).loops.in_place.empty());
}

TEST(GpuMapping, PartsThatNothingConnectsAreOneLaunch) {
  const Graph group = updates_group({{40, 30}, {7}, {1200}, {40, 30}, {7}, {1200}});
  const GpuProgram program = gpu_program(group);
  EXPECT_EQ(program.kernels.size(), 6U);
  ASSERT_EQ(program.launches.size(), 1U) << to_text(program);
  const GpuLaunch& launch = program.launches[0];
  EXPECT_EQ(launch.kernels, 6U);
  int64_t blocks = 0;
  for (const GpuKernel& kernel : program.kernels) {
    EXPECT_EQ(kernel.block, launch.block);
    blocks += kernel.blocks;
  }
  EXPECT_EQ(launch.blocks, blocks);
  // Two bodies: elements by fours, and one by one; each is printed once.
  const std::string text = cuda_kernels(program, "updates");
  size_t functions = 0, switches = 0;
  for (size_t at = text.find("__global__"); at != std::string::npos; at = text.find("__global__", at + 1)) ++functions;
  for (size_t at = text.find("switch ("); at != std::string::npos; at = text.find("switch (", at + 1)) ++switches;
  EXPECT_EQ(functions, 1U);
  EXPECT_EQ(switches, 2U) << text;
}

TEST(GpuMapping, WhatReadsAnothersResultIsALaunchOfItsOwn) {
  const GpuProgram program = gpu_program(column_sums_group(100000, 256));
  EXPECT_EQ(program.launches.size(), 2U);
}

TEST(GpuInterpreter, FindsKernelsOfALaunchThatWriteToOnePlace) {
  const Graph group = updates_group({{40, 30}, {40, 30}});
  GpuProgram program = gpu_program(group);
  ASSERT_EQ(program.launches.size(), 1U);
  uint32_t written = 0;
  for (LoopInstruction& one : program.loops.phases[0].instructions)
    if (one.op == LoopOp::kStore) written = one.buffer;
  for (LoopInstruction& one : program.loops.phases[1].instructions)
    if (one.op == LoopOp::kStore) one.buffer = written;
  EXPECT_NE(findings_of(group, program).problem.find("beside thread"), std::string::npos);
}

TEST(GpuMapping, DrawsAreTheCpusByElement) {
  const std::vector<NamedGroup> groups = step_groups();
  const Graph& group = named(groups, "dropout").graph;
  const std::vector<Array> inputs = random_arrays(group, 1, false);
  KernelCompiler compiler(host_cpu());
  const std::vector<Array> want = run_kernel(compiler, group, inputs);
  const GpuProgram program = gpu_program(group);
  GpuBuffers buffers(group, program, inputs);
  ASSERT_EQ(interpret(program, buffers.spans()).problem, "");
  const std::vector<Array> have = buffers.outputs();
  for (size_t k = 0; k < want.size(); ++k) EXPECT_TRUE(same_bits(have[k], want[k])) << k;
}

TEST(GpuInterpreter, FindsAMissingBarrier) {
  const Graph group = softmax_group(3, 2048);
  GpuProgram program = gpu_program(group);
  std::erase_if(program.kernels[0].steps, [](const GpuStep& step) { return step.kind == GpuStep::Kind::kBarrier; });
  EXPECT_NE(findings_of(group, program).problem.find("beside thread"), std::string::npos);
}

TEST(GpuInterpreter, FindsTwoTeamsAtOneRow) {
  const Graph group = softmax_group(64, 64);
  GpuProgram program = gpu_program(group);
  for (LoopInstruction& one : program.loops.phases[0].instructions)
    if (one.op == LoopOp::kStore) std::erase_if(one.index.terms, [](const AffineTerm& term) { return term.loop == 0; });
  EXPECT_NE(findings_of(group, program).problem.find("beside thread"), std::string::npos);
}

TEST(GpuInterpreter, FindsAnAccessOutOfBounds) {
  const Graph group = softmax_group(3, 2048);
  GpuProgram program = gpu_program(group);
  program.loops.buffers[1].count -= 1;
  EXPECT_NE(findings_of(group, program).problem.find("b1[6136] of 6143"), std::string::npos);
}

TEST(GpuInterpreter, CountsSectorsOfLanesThatStandApart) {
  GraphBuilder b;
  group_output(b, b.add("neg", {group_input(b, DType::kF32, {4096})}));
  const Graph group = b.take();
  GpuProgram program = gpu_program(group);
  GpuKernel& kernel = program.kernels[0];
  ASSERT_EQ(kernel.width, 4);
  kernel.modes.assign(kernel.modes.size(), GpuMode::kEach);  // each lane reads its four elements one by one
  const GpuFindings found = findings_of(group, program);
  EXPECT_EQ(found.problem, "");
  EXPECT_EQ(found.sectors, 4 * found.least_sectors);
}

TEST(GpuMapping, KernelsOfModelsAreLikeTheInterpreter) {
  const std::vector<NamedGroup> groups = small_model_groups(model_graphs(STEPC_SOURCE_DIR));
  EXPECT_GT(groups.size(), 20U);
  for (const NamedGroup& group : groups) {
    SCOPED_TRACE(group.name);
    expect_gpu_program(group.graph, random_arrays(group.graph, 1, false), gpu_program(group.graph));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace stepc
