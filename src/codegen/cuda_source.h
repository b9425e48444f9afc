// A GpuProgram as CUDA C++ for NVRTC, one function a launch:
//
//   extern "C" __global__ void NAME0(const float* __restrict__ b0, u16* __restrict__ b1, ..., unsigned char* scratch)
//
// launched with its blocks, threads and bytes of dynamic shared memory; not at all where it has no blocks,
// which a driver refuses. The parameters are all of the program's inputs and outputs, then its scratch memory. What
// `in_place` names may be one piece of memory and has no __restrict__. Compile with cuda_options(): what is not written
// as one operation must not become one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "codegen/gpu_mapping.h"

namespace stepc {

std::string_view cuda_prelude();  // once in front of any number of programs
std::string cuda_kernels(const GpuProgram& program, std::string_view name);
std::string cuda_source(const GpuProgram& program);  // both, named phase0 and so on
std::vector<std::string> cuda_options(int architecture);

}  // namespace stepc
