// A LoopProgram as CUDA C++ for NVRTC: one kernel a phase, named phase0 and so on, a thread for each item in turn.
//
//   extern "C" __global__ void phase0(void* const* buffers, long long begin, long long end, unsigned char* scratch)
//
// Compile with cuda_options(): what is not written as one operation must not become one.
#pragma once

#include <string>
#include <vector>

#include "loops/loop_program.h"

namespace stepc {

std::string cuda_source(const LoopProgram& program);
// For a compute capability, "sm_90".
std::vector<std::string> cuda_options(const std::string& architecture);

}  // namespace stepc
