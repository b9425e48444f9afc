// How the lanes of a loop take `width` elements in a row: how wide all accesses along them can be, and what is done
// once, wide or for each of the elements. For the mapper, private to codegen/; refers to the program it is made for.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "codegen/gpu_mapping.h"

namespace stepc {

class LaneGroups {
 public:
  LaneGroups(const LoopProgram& program, const LoopPhase& phase);

  // For all of these kLanes steps; 1 where nothing moves along the lanes.
  [[nodiscard]] int64_t widest(std::span<const GpuStep> steps) const;
  // By instruction of the phase; outside of the step, kEach.
  [[nodiscard]] std::vector<GpuMode> modes_of(const GpuStep& step, int64_t width) const;
  // Whether the index has the variable, or a digit of it.
  [[nodiscard]] bool moves_with(const Affine& index, uint32_t variable) const;

 private:
  [[nodiscard]] bool is_digit_of(uint32_t loop, uint32_t variable) const;
  [[nodiscard]] bool is_aligned(const Affine& index, uint32_t variable, int64_t width) const;
  [[nodiscard]] bool is_row_access(const LoopInstruction& one, uint32_t variable) const;
  [[nodiscard]] bool takes(const GpuStep& step, int64_t width) const;
  [[nodiscard]] bool is_whole_comparison(const LoopInstruction& one, int32_t index, int64_t width) const;
  [[nodiscard]] bool is_for_comparisons(uint32_t index, uint32_t innermost, int64_t width) const;

  const LoopProgram& program_;
  const LoopPhase& phase_;
  const std::vector<LoopInstruction>& code_;
};

}  // namespace stepc
