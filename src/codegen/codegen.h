// The code generator as the engine sees it: a group of nodes becomes a LoopProgram, that a Kernel for the CPU at hand.
//
//   if (why_not(group).empty()) kernel = compiler.compile(lower(group));
//   for (const KernelPhase& phase : kernel->phases)   // one after the other
//     pool.parallel_for(0, phase.items, phase.grain,
//                       [&](int64_t begin, int64_t end) { phase.run(buffers, begin, end, scratch); });
//
// `buffers` holds the group's inputs, then its outputs. Whatever the cuts between begin and end, the bits are the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "codegen/cpu_target.h"
#include "ir/graph.h"
#include "loops/lower/lower.h"

namespace stepc {

// Empty: the generator can make one kernel of `group` (one of extract_groups()).
inline std::string why_not(const Graph& group) { return why_no_loops(group); }

struct KernelPhase {
  int64_t items = 1;
  int64_t grain = 1;  // items that are worth a thread's while
  void (*run)(void* const* buffers, int64_t begin, int64_t end, void* scratch) = nullptr;
};

// Owns its machine code. May be run by several threads, each phase's items in any order; phases wait for each other.
struct Kernel {
  std::vector<KernelPhase> phases;
  int64_t scratch_bytes = 0;  // aligned to 64, shared by all threads of a run, its contents before do not matter
  // (input, output), counted among inputs and among outputs, that may be one piece of memory.
  std::vector<std::pair<uint32_t, uint32_t>> in_place;
  std::shared_ptr<const void> code;
};

struct CompilerStatistics {
  size_t kernels = 0;    // asked for
  size_t in_memory = 0;  // of those, made before by this compiler
  size_t from_disk = 0;  // read from the cache directory
  size_t compiled = 0;   // by LLVM
  size_t damaged = 0;    // cache entries that were rebuilt
  double compile_seconds = 0;
  std::string cache_problem;  // why the directory is not written to; empty: it is
};

// Compiles for one CPU; equal programs once. Safe to use from several threads, and with several processes on one
// directory. Kernels outlive their compiler.
class KernelCompiler {
 public:
  explicit KernelCompiler(CpuTarget target, std::filesystem::path cache_directory = {});
  ~KernelCompiler();
  KernelCompiler(const KernelCompiler&) = delete;
  KernelCompiler& operator=(const KernelCompiler&) = delete;

  // InternalError when LLVM refuses what was generated.
  std::shared_ptr<const Kernel> compile(const LoopProgram& program);
  // All of them, on as many threads; throws what the first that fails throws.
  std::vector<std::shared_ptr<const Kernel>> compile_all(std::span<const LoopProgram> programs, size_t threads);
  [[nodiscard]] CompilerStatistics statistics() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stepc
