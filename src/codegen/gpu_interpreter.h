// Runs a GpuProgram on this machine, one thread of a block after the other between its barriers, and watches every
// access: what a device would do with memory, without one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "codegen/gpu_mapping.h"

namespace stepc {

struct GpuFindings {
  // The first of: an access out of bounds, two threads at one element without a barrier between them where one of them
  // writes, a read of shared memory that nobody has written. Empty: none.
  std::string problem;
  // Of accesses along the lanes, those of 32 threads together: sectors of 32 bytes touched, and the fewest that could
  // hold what they ask for.
  int64_t sectors = 0, least_sectors = 0;
};

// Buffers: inputs, then outputs, of the bytes that the program asks for; one piece of memory may be given twice.
GpuFindings interpret(const GpuProgram& program, const std::vector<std::span<uint8_t>>& buffers);

}  // namespace stepc
