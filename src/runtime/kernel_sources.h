// KernelSources: where the kernels of Graphs come from: the code generator with its cache, and the machine's matrix
// micro-kernels. Outlives the Graphs that are bound with it.
#pragma once

#include <filesystem>
#include <functional>

#include "blocked/micro_kernels.h"
#include "codegen/codegen.h"
#include "ir/graph.h"

namespace stepc {

struct KernelSources {
  explicit KernelSources(std::filesystem::path directory)
      : compiler(host_cpu(), std::move(directory)), micro_kernels(blocked::probe_micro_kernels()) {}
  KernelCompiler compiler;
  blocked::MicroKernels micro_kernels;
  // Sees every group of a Graph before a kernel is made of it; what it throws is why there is none, and the group runs
  // as ATen calls.
  std::function<void(const Graph& group)> before_compile;
};

}  // namespace stepc
