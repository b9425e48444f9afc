// The kernels that are tried on a device: small ones of every form, whose results the interpreter of mappings knows,
// and those of a training step at its sizes, whose time is asked for.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "codegen/gpu_mapping.h"
#include "interp/array.h"
#include "ir/graph.h"

namespace stepc {

struct KernelCase {
  std::string name;
  Graph graph;
  GpuProgram program;
  uint64_t seed = 1;  // of its inputs
  bool specials = false;

  [[nodiscard]] std::vector<Array> inputs() const;
};
// `root`: of the sources, whose tests/codegen/models are read. In one order everywhere.
std::vector<KernelCase> kernel_cases(const std::filesystem::path& root);

// Its graph by the number of rows. What has rows among the inputs repeats from kPeriod to kPeriod, so the results do.
struct RateCase {
  std::string name;
  int64_t rows = 0;
  std::function<Graph(int64_t rows)> graph;
  static constexpr int64_t kPeriod = 8;
};
// `rows` instead of a training step's, where a test wants to be quick; 0: those.
std::vector<RateCase> rate_cases(int64_t rows = 0);
GpuProgram program_of(const RateCase& one);

// Several programs as one text, so that a compiler starts seldom: the kernels of the k-th case are group{k}_phase0 and
// so on.
struct KernelBatch {
  size_t first = 0, last = 0;
  std::string source;
};
std::vector<KernelBatch> batches_of(const std::vector<KernelCase>& cases);
std::string kernel_name(size_t program, size_t phase);

// Whether what it computes is the same bits everywhere: it calls no function of a mathematical library.
bool is_exact(const GpuProgram& program);

}  // namespace stepc
