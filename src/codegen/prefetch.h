// What a vector loop had better fetch early, so that memory works while it computes: the next row's inputs and outputs,
// or, where there are no rows or long ones, what it reaches itself some turns later.
#pragma once

#include <optional>
#include <vector>

#include "loops/loop_program.h"

namespace stepc {

struct Prefetch {
  size_t access = 0;  // a load or a store in a row, by instruction
  int64_t step = 0;   // how far from its form
};

// For the vector loop at instruction `sweep`, in the loop at `row`, if it is in one. A row that is swept several times
// waits for the last of them.
std::vector<Prefetch> prefetches_of(const LoopProgram& program, const LoopPhase& phase, std::optional<size_t> row,
                                    size_t sweep);

}  // namespace stepc
