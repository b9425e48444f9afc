// The printed text of kernels, compiled for this machine, against the interpreter of mappings: the same bits, whichever
// of a block's threads runs first.
#include "tests/codegen/printed_kernels.h"

#include <bit>
#include <numeric>

#include <gtest/gtest.h>

#include "tests/codegen/groups.h"
#include "tests/codegen/model_groups.h"
#include "tests/codegen/random_program.h"
#include "tests/codegen/run_gpu.h"

namespace stepc {
namespace {

struct PrintedGroup {
  Graph graph;
  std::vector<Array> inputs;
  GpuProgram program;
};

void expect_printed_kernels(const std::vector<PrintedGroup>& groups) {
  PrintedKernels kernels(STEPC_SOURCE_DIR);
  for (const PrintedGroup& group : groups) kernels.add(group.program);
  kernels.compile();
  for (size_t number = 0; number < groups.size(); ++number) {
    const PrintedGroup& group = groups[number];
    GpuBuffers wanted(group.graph, group.program, group.inputs);
    ASSERT_EQ(interpret(group.program, wanted.spans()).problem, "");
    const std::vector<Array> want = wanted.outputs();
    for (bool backwards : {false, true}) {
      GpuBuffers buffers(group.graph, group.program, group.inputs);
      ASSERT_TRUE(kernels.run(number, buffers.spans(), backwards)) << cuda_source(group.program);
      const std::vector<Array> have = buffers.outputs();
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_TRUE(same_bits(have[i], want[i]))
            << "output " << i << (backwards ? " backwards of\n" : " of\n") << to_text(group.program)
            << cuda_kernels(group.program, "phase") << to_text(have[i]) << to_text(want[i]);
    }
  }
}

TEST(PrintedKernels, OfStepsGiveTheMappingsBits) {
  constexpr size_t kAtOnce = 250;  // in one source
  std::vector<NamedGroup> all = step_groups();
  for (NamedGroup& group : small_model_groups(model_graphs(STEPC_SOURCE_DIR))) all.push_back(std::move(group));
  std::vector<PrintedGroup> groups;
  for (const NamedGroup& group : all) {
    groups.push_back({group.graph, random_arrays(group.graph, 1, false), gpu_program(group.graph)});
    if (groups.size() < kAtOnce && &group != &all.back()) continue;
    expect_printed_kernels(groups);
    if (HasFatalFailure()) return;
    groups.clear();
  }
}

// To float8: every bf16, halfway to the next one and beside that; from float8: every one.
TEST(PrintedKernels, OfFloat8GiveTheMappingsBits) {
  std::vector<float> numbers;
  for (uint32_t upper = 0; upper < 0x10000; ++upper)
    for (uint32_t lower : {0x0U, 0x1U, 0x8000U, 0xFFFFU})
      numbers.push_back(std::bit_cast<float>((upper << 16) | lower));
  Array wide({DType::kF32, {static_cast<int64_t>(numbers.size())}});
  for (size_t i = 0; i < numbers.size(); ++i) wide.reals[i] = static_cast<double>(numbers[i]);
  std::vector<uint8_t> bytes(256);
  std::iota(bytes.begin(), bytes.end(), 0);
  std::vector<PrintedGroup> groups;
  const auto add = [&](const Array& input, DType dtype) {
    GraphBuilder b;
    group_output(b, b.cast(group_input(b, input.type.dtype, input.type.shape), dtype));
    groups.push_back({b.graph(), {input}, gpu_program(b.graph())});
  };
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2}) {
    add(wide, dtype);
    add(from_bytes({dtype, {256}}, bytes), DType::kF32);
  }
  expect_printed_kernels(groups);
}

TEST(PrintedKernels, OfRandomProgramsGiveTheMappingsBits) {
  constexpr uint64_t kPrograms = 300;
  std::vector<PrintedGroup> groups;
  for (uint64_t seed = 0; seed < kPrograms; ++seed)
    for_each_random_group(seed, [&](const Graph& group, const std::vector<Array>& inputs) {
      groups.push_back({group, inputs, gpu_program(group)});
    });
  expect_printed_kernels(groups);
}

}  // namespace
}  // namespace stepc
