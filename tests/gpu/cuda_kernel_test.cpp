// Groups of a step as CUDA kernels on a device, against the interpreter. Without a device each test says [SKIP].
#include <gtest/gtest.h>

#include "codegen/cuda_source.h"
#include "tests/codegen/groups.h"
#include "tests/codegen/nvrtc.h"
#include "tests/codegen/random_program.h"
#include "tests/codegen/run_gpu.h"
#include "tests/gpu/cuda_driver.h"

namespace stepc {
namespace {

std::vector<Array> run_on_device(const CudaDriver& driver, const Nvrtc& nvrtc, const Graph& group,
                                 const std::vector<Array>& inputs) {
  const GpuProgram program = gpu_program(group);
  void* code = driver.load(nvrtc.compile(cuda_source(program), cuda_options(driver.architecture())).cubin);
  GpuBuffers buffers(group, program, inputs);
  std::vector<uint64_t> parameters;
  for (std::span<uint8_t> bytes : buffers.spans()) {
    parameters.push_back(driver.allocate(bytes.size()));
    driver.copy_in(parameters.back(), bytes.data(), bytes.size());
  }
  parameters.push_back(driver.allocate(static_cast<size_t>(program.loops.scratch_bytes)));
  for (size_t p = 0; p < program.kernels.size(); ++p) {
    const GpuKernel& kernel = program.kernels[p];
    driver.launch(code, str("phase{}", p), parameters, kernel.blocks, kernel.block, kernel.shared_bytes);
  }
  const std::vector<std::span<uint8_t>> spans = buffers.spans();
  for (size_t b = 0; b < spans.size(); ++b) driver.copy_out(spans[b].data(), parameters[b], spans[b].size());
  for (uint64_t memory : parameters) driver.free(memory);
  return buffers.outputs();
}

TEST(CudaKernel, GroupsOfAStepAreLikeTheInterpreter) {
  const CudaDriver driver;
  if (!driver.found()) GTEST_SKIP() << "[SKIP] no CUDA device";
  const Nvrtc nvrtc;
  if (!nvrtc.found()) GTEST_SKIP() << "[SKIP] no NVRTC";
  for (const NamedGroup& group : step_groups()) {
    SCOPED_TRACE(group.name);
    const std::vector<Array> inputs = random_arrays(group.graph, 5, false);
    const std::vector<Array> want = interpret(group.graph, inputs);
    const std::vector<Array> have = run_on_device(driver, nvrtc, group.graph, inputs);
    const double scale = largest_magnitude(group.graph, inputs);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(alike(have[i], want[i], tolerance_of(group.graph), scale)) << i;
  }
}

}  // namespace
}  // namespace stepc
