// Runs a group's GpuProgram on arrays by the interpreter of mappings.
#pragma once

#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "codegen/gpu_interpreter.h"
#include "codegen/gpu_mapping.h"
#include "loops/expand_math.h"
#include "tests/codegen/expect_kernel.h"
#include "tests/codegen/run_kernel.h"

namespace stepc {

inline GpuProgram gpu_program(const Graph& group, const GpuShape& gpu = {}) {
  return map_to_gpu(expand_math(lower(group, Together::kConnected, loop_limits(gpu))), gpu);
}

// What a kernel is given, as a device would hold it.
class GpuBuffers {
 public:
  GpuBuffers(const Graph& group, const GpuProgram& program, const std::vector<Array>& inputs)
      : group_(group), inputs_(inputs.size()) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      bytes_.push_back(placed_bytes(group, group.inputs[i], inputs[i]));
      fit(program.loops.buffers[i]);
    }
    for (size_t k = 0; k < group.outputs.size(); ++k) {
      bytes_.emplace_back();
      fit(program.loops.buffers[inputs_ + k]);
    }
  }
  std::vector<std::span<uint8_t>> spans() {
    std::vector<std::span<uint8_t>> out;
    for (std::vector<uint8_t>& one : bytes_) out.emplace_back(one);
    return out;
  }
  [[nodiscard]] std::vector<Array> outputs() const {
    std::vector<Array> out;
    for (size_t k = 0; k < group_.outputs.size(); ++k) {
      std::vector<uint8_t> bytes = bytes_[inputs_ + k];
      bytes.resize(static_cast<size_t>(bytes_of(group_.type(group_.outputs[k].tensor))));
      out.push_back(from_bytes(group_.type(group_.outputs[k].tensor), bytes));
    }
    return out;
  }

 private:
  void fit(const LoopBuffer& buffer) {
    const auto bytes = static_cast<size_t>(buffer.count * size_of(buffer.dtype));
    if (bytes_.back().size() < bytes) bytes_.back().resize(bytes, 0xEE);
  }
  const Graph& group_;
  size_t inputs_;
  std::vector<std::vector<uint8_t>> bytes_;
};

// Without a race, and like the interpreter of graphs.
inline void expect_gpu_program(const Graph& group, const std::vector<Array>& inputs, const GpuProgram& program) {
  GpuBuffers buffers(group, program, inputs);
  const GpuFindings findings = interpret(program, buffers.spans());
  ASSERT_EQ(findings.problem, "") << to_text(group) << to_text(program);
  const std::vector<Array> want = interpret(group, inputs);
  const std::vector<Array> have = buffers.outputs();
  const double scale = largest_magnitude(group, inputs);
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_TRUE(alike(have[i], want[i], tolerance_of(group), scale))
        << "output " << i << " of\n"
        << to_text(group) << to_text(program) << to_text(have[i]) << to_text(want[i]);
}

}  // namespace stepc
