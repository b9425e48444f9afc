// Kernels of groups that occur in training steps, on this CPU and on the plainest one, against the interpreter.
#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "tests/codegen/expect_kernel.h"
#include "tests/codegen/groups.h"

namespace stepc {
namespace {

std::vector<Array> random_arrays(const Graph& graph, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Array> out;
  for (const GraphInput& input : graph.inputs) {
    Array array(graph.type(input.tensor));
    for (int64_t i = 0; i < array.count(); ++i) {
      if (array.is_real())
        array.set(i, static_cast<double>(random() % 2001) / 1000);
      else
        array.set(i, static_cast<int64_t>(random() % 5));
    }
    out.push_back(std::move(array));
  }
  return out;
}

TEST(Kernel, GroupsOfAStepAreLikeTheInterpreter) {
  for (const CpuTarget& target : {host_cpu(), generic_cpu()}) {
    KernelCompiler compiler(target);
    for (const NamedGroup& group : step_groups()) {
      SCOPED_TRACE(group.name);
      expect_kernel(compiler, group.graph, random_arrays(group.graph, 5));
      if (HasFatalFailure()) return;
    }
    EXPECT_EQ(compiler.statistics().kernels, 3 * step_groups().size());
    EXPECT_EQ(compiler.statistics().in_memory, 2 * step_groups().size());
  }
}

TEST(Kernel, SeveralAreCompiledAtOnce) {
  std::vector<LoopProgram> programs;
  for (const NamedGroup& group : step_groups()) programs.push_back(lower(group.graph));
  KernelCompiler compiler(host_cpu());
  const auto kernels = compiler.compile_all(programs, 3);
  for (size_t i = 0; i < programs.size(); ++i) EXPECT_EQ(compiler.compile(programs[i]), kernels[i]);
  EXPECT_EQ(compiler.statistics().in_memory, programs.size());

  programs[4].phases[0].instructions.pop_back();
  programs[7].phases.clear();
  programs[7].phases.emplace_back().items = -1;
  try {
    compiler.compile_all(programs, 2);
    FAIL() << "a broken program was compiled";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("a loop is not closed"), std::string::npos) << error.what();
  }
}

// The optimizer's arrays are written where they are read, whatever the cuts.
TEST(Kernel, UpdatesInPlace) {
  const Graph group = adamw_group(1003);
  const std::vector<Array> inputs = random_arrays(group, 3);
  KernelCompiler compiler(host_cpu());
  const auto kernel = compiler.compile(lower(group));
  const std::vector<Array> want = run_kernel(compiler, group, inputs);
  ASSERT_EQ(kernel->in_place.size(), 12U) << "each of three outputs may be in any of the four arrays";
  const std::vector<uint32_t> homes = {0, 2, 3};  // parameter, mean, mean square
  for (uint32_t k = 0; k < 3; ++k)
    EXPECT_NE(std::ranges::find(kernel->in_place, std::pair(homes[k], k)), kernel->in_place.end());
  std::vector<std::vector<uint8_t>> memory;
  std::vector<void*> buffers;
  for (const Array& input : inputs) memory.push_back(to_bytes(input));
  for (std::vector<uint8_t>& bytes : memory) buffers.push_back(bytes.data());
  for (uint32_t home : homes) buffers.push_back(buffers[home]);
  run_phases(*kernel, buffers, Cuts::kUneven);
  for (size_t k = 0; k < 3; ++k) EXPECT_TRUE(same_bits(from_bytes(want[k].type, memory[homes[k]]), want[k])) << k;
}

// A row is read again after a part of it was written: softmax may not be in place by sweeps that read the input twice.
TEST(Kernel, SaysWhatMayNotBeInPlace) {
  GraphBuilder b;
  const TensorId x = group_input(b, DType::kF32, {4, 9});
  const TensorId centred = b.add("sub", {x, b.add("max", {x}, {{"dims", Shape{1}}, {"keepdim", true}})});
  group_output(b, centred);
  KernelCompiler compiler(host_cpu());
  EXPECT_TRUE(compiler.compile(lower(b.graph()))->in_place.empty());
}

TEST(Kernel, SaysWhyNot) {
  GraphBuilder b;
  const TensorId x = group_input(b, DType::kF32, {100, 100});
  group_output(b, b.add("matmul", {x, x}, {{"transpose_a", false}, {"transpose_b", false}}));
  EXPECT_EQ(why_not(b.graph()), "matmul is no loop");
  GraphBuilder norm;
  const TensorId y = group_input(norm, DType::kF32, {1000, 1000});
  group_output(norm, norm.add("div", {y, norm.sum(y, {0, 1})}));
  EXPECT_EQ(why_not(norm.graph()), "all rows wait for a sum over all of them");
}

}  // namespace
}  // namespace stepc
