// What a phase had better fetch early: while the last sweep over a row computes, memory stands idle, and the next row's
// inputs and outputs can come.
#pragma once

#include <vector>

#include "loops/loop_program.h"

namespace stepc {

struct Prefetch {
  size_t access = 0;  // a load or a store in a row, by instruction
  int64_t step = 0;   // how far its form moves until the next row
};

// For the vector loop at instruction `sweep`, inside the loop at `row`; none unless it is the last one there.
std::vector<Prefetch> prefetches_of(const LoopProgram& program, const LoopPhase& phase, size_t row, size_t sweep);

}  // namespace stepc
