// What a phase of a LoopProgram does, counted by what its speed depends on; all of its items together.
#pragma once

#include "loops/loop_program.h"

namespace stepc {

struct LoopWork {
  double lane_ops = 0;    // arithmetic, contiguous loads and stores of f32 in vector loops; of f64 and i64 twice
  double lane_roots = 0;  // divisions and square roots there
  double scalar_ops = 0;  // the same outside of vector loops
  double calls = 0;       // elementary functions without a polynomial
  double gathers = 0;     // elements that a vector loop reads or writes one by one
};

// Of a program after expand_math(), whose functions are arithmetic.
LoopWork work_of(const LoopProgram& program, const LoopPhase& phase);

}  // namespace stepc
