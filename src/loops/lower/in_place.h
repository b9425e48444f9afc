// Which outputs of a kernel may lie where an input lies.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "loops/loop_program.h"

namespace stepc {

// (input, output) buffers: as large, and the input is read only where, and in the sweep in which, the output is
// written; with `earlier_sweeps` in those before it too.
std::vector<std::pair<uint32_t, uint32_t>> in_place_pairs(const LoopProgram& program, bool earlier_sweeps = false);

}  // namespace stepc
