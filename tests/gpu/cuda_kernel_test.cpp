// Groups of a step as CUDA kernels on a device, against the interpreter. Without a device each test says [SKIP].
#include <random>

#include <gtest/gtest.h>

#include "codegen/cuda_source.h"
#include "loops/expand_math.h"
#include "tests/codegen/expect_kernel.h"
#include "tests/codegen/groups.h"
#include "tests/codegen/nvrtc.h"
#include "tests/gpu/cuda_driver.h"

namespace stepc {
namespace {

std::vector<Array> run_on_device(const CudaDriver& driver, const Nvrtc& nvrtc, const Graph& group,
                                 const std::vector<Array>& inputs) {
  const LoopProgram program = expand_math(lower(group));
  void* code = driver.load(nvrtc.cubin(cuda_source(program), cuda_options(driver.architecture())));
  std::vector<uint64_t> buffers;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::vector<uint8_t> bytes = placed_bytes(group, group.inputs[i], inputs[i]);
    buffers.push_back(driver.allocate(bytes.size()));
    driver.copy_in(buffers.back(), bytes.data(), bytes.size());
  }
  for (const GraphOutput& output : group.outputs)
    buffers.push_back(driver.allocate(static_cast<size_t>(bytes_of(group.type(output.tensor)))));
  const uint64_t table = driver.allocate(buffers.size() * sizeof(uint64_t));
  driver.copy_in(table, buffers.data(), buffers.size() * sizeof(uint64_t));
  const uint64_t scratch = driver.allocate(static_cast<size_t>(program.scratch_bytes));
  for (size_t p = 0; p < program.phases.size(); ++p)
    driver.launch(code, str("phase{}", p), table, program.phases[p].items, scratch);
  std::vector<Array> outputs;
  for (size_t k = 0; k < group.outputs.size(); ++k) {
    const TensorType& type = group.type(group.outputs[k].tensor);
    std::vector<uint8_t> bytes(static_cast<size_t>(bytes_of(type)));
    driver.copy_out(bytes.data(), buffers[inputs.size() + k], bytes.size());
    outputs.push_back(from_bytes(type, bytes));
  }
  buffers.push_back(table);
  buffers.push_back(scratch);
  for (uint64_t memory : buffers) driver.free(memory);
  return outputs;
}

TEST(CudaKernel, GroupsOfAStepAreLikeTheInterpreter) {
  const CudaDriver driver;
  if (!driver.found()) GTEST_SKIP() << "[SKIP] no CUDA device";
  const Nvrtc nvrtc;
  if (!nvrtc.found()) GTEST_SKIP() << "[SKIP] no NVRTC";
  std::mt19937_64 random(5);
  for (const NamedGroup& group : step_groups()) {
    SCOPED_TRACE(group.name);
    std::vector<Array> inputs;
    for (const GraphInput& input : group.graph.inputs) {
      Array array(group.graph.type(input.tensor));
      for (int64_t i = 0; i < array.count(); ++i) {
        if (array.is_real())
          array.set(i, static_cast<double>(random() % 2001) / 1000);
        else
          array.set(i, static_cast<int64_t>(random() % 5));
      }
      inputs.push_back(std::move(array));
    }
    const std::vector<Array> want = interpret(group.graph, inputs);
    const std::vector<Array> have = run_on_device(driver, nvrtc, group.graph, inputs);
    const double scale = largest_magnitude(group.graph, inputs);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(alike(have[i], want[i], tolerance_of(group.graph), scale)) << i;
  }
}

}  // namespace
}  // namespace stepc
