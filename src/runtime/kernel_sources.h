// KernelSources: the sources of a Schedule's kernels: the code generator with its cache, the machine's matrix
// micro-kernels, and the measured workspaces of ATen's kernels. Must outlive the Schedules that are bound with it.
#pragma once

#include <filesystem>
#include <functional>
#include <mutex>

#include <ATen/core/Tensor.h>

#include "blocked/micro_kernels.h"
#include "codegen/codegen.h"
#include "codegen/machine_code.h"
#include "loops/loop_program.h"
#include "runtime/micro_kernels.h"
#include "schedule/schedule.h"
#include "schedule/workspaces.h"

namespace stepc {

struct KernelSources {
  explicit KernelSources(std::filesystem::path directory)
      : KernelSources(std::move(directory), host_cpu(), probe_micro_kernels()) {}
  // For a CPU with fewer features than this machine: those that all ranks have.
  KernelSources(std::filesystem::path directory, CpuTarget cpu, const blocked::MicroKernels& kernels)
      : compiler(std::move(cpu), directory), machine_code(std::move(directory)), micro_kernels(kernels) {}
  KernelCompiler compiler;
  MachineCode machine_code;  // of GPUs
  blocked::MicroKernels micro_kernels;
  // Sees every program before it becomes a kernel. If it throws, the program gets no kernel, for the thrown reason, and
  // its nodes run as ATen calls.
  std::function<void(const LoopProgram& program)> before_compile;
  // Sees every result of executors that are made later, as RunInputs::on_written does. Tests make faults there.
  std::function<void(const Instruction& instruction, const at::Tensor& written)> on_written;
  std::mutex measuring;
  WorkspaceTable workspaces, workspaces_on_device;  // guarded by `measuring`
};

}  // namespace stepc
