// Runs a group's kernel on arrays, as the engine would, cut into calls as asked.
#pragma once

#include <cstring>
#include <vector>

#include "base/check.h"
#include "codegen/codegen.h"
#include "interp/array.h"
#include "loops/lower/lower.h"

namespace stepc {

// How the items of a phase are cut into calls.
enum class Cuts { kWhole, kSingle, kUneven };

// The bytes of an input as its strides and offset place them; gaps hold 0xEE.
inline std::vector<uint8_t> placed_bytes(const Graph& group, const GraphInput& input, const Array& array) {
  const TensorType& type = group.type(input.tensor);
  const auto size = static_cast<size_t>(size_of(type.dtype));
  const Shape strides = input.strides.empty() ? contiguous_strides(type.shape) : input.strides;
  int64_t last = input.offset;
  for (size_t d = 0; d < strides.size(); ++d) last += std::max<int64_t>(type.shape[d] - 1, 0) * strides[d];
  std::vector<uint8_t> bytes(static_cast<size_t>(last + 1) * size, 0xEE);
  const std::vector<uint8_t> dense = to_bytes(array);
  for_each_index(type.shape, [&](const Shape& index, int64_t i) {
    std::memcpy(&bytes[static_cast<size_t>(input.offset + dot(index, strides)) * size],
                &dense[static_cast<size_t>(i) * size], size);
  });
  return bytes;
}

inline void run_phases(const Kernel& kernel, std::vector<void*> buffers, Cuts cuts) {
  std::vector<uint8_t> memory(static_cast<size_t>(kernel.scratch_bytes) + 64, 0xEE);
  void* scratch = memory.data();
  size_t space = memory.size();
  scratch = std::align(64, static_cast<size_t>(kernel.scratch_bytes), scratch, space);
  for (const KernelPhase& phase : kernel.phases) {
    if (cuts == Cuts::kWhole) {
      phase.run(buffers.data(), 0, phase.items, scratch);
      continue;
    }
    // From the last cut to the first: no item may need one before it.
    std::vector<int64_t> marks = {0};
    while (marks.back() < phase.items)
      marks.push_back(std::min(phase.items, marks.back() + (cuts == Cuts::kSingle ? 1 : 1 + 7 * marks.back() % 23)));
    for (size_t i = marks.size() - 1; i-- > 0;) phase.run(buffers.data(), marks[i], marks[i + 1], scratch);
  }
}

inline std::vector<Array> run_kernel(KernelCompiler& compiler, const Graph& group, const std::vector<Array>& inputs,
                                     Cuts cuts = Cuts::kWhole) {
  const std::shared_ptr<const Kernel> kernel = compiler.compile(lower(group));
  std::vector<std::vector<uint8_t>> memory;
  for (size_t i = 0; i < inputs.size(); ++i) memory.push_back(placed_bytes(group, group.inputs[i], inputs[i]));
  for (const GraphOutput& output : group.outputs)
    memory.emplace_back(static_cast<size_t>(bytes_of(group.type(output.tensor))) + 1, 0xEE);
  std::vector<void*> buffers;
  for (std::vector<uint8_t>& bytes : memory) buffers.push_back(bytes.data());
  run_phases(*kernel, buffers, cuts);
  std::vector<Array> outputs;
  for (size_t k = 0; k < group.outputs.size(); ++k) {
    std::vector<uint8_t>& bytes = memory[inputs.size() + k];
    INTERNAL_CHECK_EQ(static_cast<int>(bytes.back()), 0xEE, "output {} is written past its end", k);
    bytes.pop_back();
    outputs.push_back(from_bytes(group.type(group.outputs[k].tensor), bytes));
  }
  return outputs;
}

}  // namespace stepc
