// A thread of a GPU as an interpreter of mapped kernels runs it: its place in the grid, its loop variables, values and
// what it holds in registers. Owned by the run of a block. Private to codegen/.
#pragma once

#include <cstdint>
#include <vector>

#include "codegen/gpu_mapping.h"
#include "codegen/loop_scalar.h"

namespace stepc {

struct GpuThread {
  int64_t number = 0;  // of the grid
  int64_t block = 0;
  int64_t lane = 0, team = 0;
  bool is_in_grid = true;                  // its team has an item
  bool is_live = true;                     // and the row that it is at is one
  std::vector<ScalarBits> values;          // by instruction
  std::vector<int64_t> variables;          // by loop variable
  std::vector<std::vector<uint8_t>> held;  // bytes, by what the kernel holds

  void place(const LoopProgram& program, const LoopPhase& phase, const GpuKernel& kernel, int64_t in_grid,
             int64_t in_block);
  // A loop variable and its digits.
  void set(const LoopPhase& phase, uint32_t variable, int64_t value);
  // Those of a step's loops, at one of its turns. False: the turn is behind the end of the item's chunk.
  bool set_all(const LoopPhase& phase, const GpuStep& step, int64_t turn);
  [[nodiscard]] int64_t value_of(const Affine& form) const;
};

}  // namespace stepc
