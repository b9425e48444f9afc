#include <chrono>
#include <map>
#include <mutex>

#include "base/check.h"
#include "codegen/codegen.h"
#include "codegen/kernel_cache.h"
#include "codegen/llvm_cpu.h"
#include "loops/expand_math.h"

namespace stepc {

struct KernelCompiler::State {
  State(CpuTarget cpu, std::filesystem::path directory) : target(std::move(cpu)), cache(std::move(directory)) {}

  const CpuTarget target;
  const KernelCache cache;
  ObjectLoader loader;
  mutable std::mutex mutex;
  std::map<std::string, std::shared_ptr<const Kernel>> kernels;  // by key
  CompilerStatistics statistics;

  // All that the machine code depends on.
  [[nodiscard]] std::string key_of(const LoopProgram& program) const {
    return str("stepc {} llvm {} cpu {} {} bits {}\n{}", STEPC_VERSION, llvm_version(), target.name, target.vector_bits,
               target.features, to_text(program));
  }

  // An object that is whole but cannot be loaded is as good as damaged.
  std::shared_ptr<const Kernel> from_disk(const std::string& key, const LoopProgram& program) {
    const KernelCache::Lookup found = cache.find(key);
    std::shared_ptr<const Kernel> kernel;
    bool damaged = found.damaged;
    if (found.object) {
      try {
        kernel = loader.load(*found.object, program);
      } catch (const InternalError&) {
        damaged = true;
      }
    }
    const std::lock_guard lock(mutex);
    statistics.damaged += damaged ? 1 : 0;
    statistics.from_disk += kernel ? 1 : 0;
    return kernel;
  }

  std::shared_ptr<const Kernel> compiled(const std::string& key, const LoopProgram& program) {
    const auto begin = std::chrono::steady_clock::now();
    const std::string object = compile_object(program, target);
    std::shared_ptr<const Kernel> kernel = loader.load(object, program);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    const std::string problem = cache.keep(key, object);
    const std::lock_guard lock(mutex);
    ++statistics.compiled;
    statistics.compile_seconds += seconds.count();
    if (!problem.empty()) statistics.cache_problem = problem;
    return kernel;
  }
};

KernelCompiler::KernelCompiler(CpuTarget target, std::filesystem::path cache_directory)
    : state_(std::make_unique<State>(std::move(target), std::move(cache_directory))) {}
KernelCompiler::~KernelCompiler() = default;

std::shared_ptr<const Kernel> KernelCompiler::compile(const LoopProgram& program) {
  const LoopProgram expanded = expand_math(program);
  const std::string key = state_->key_of(expanded);
  {
    const std::lock_guard lock(state_->mutex);
    ++state_->statistics.kernels;
    if (const auto found = state_->kernels.find(key); found != state_->kernels.end()) {
      ++state_->statistics.in_memory;
      return found->second;
    }
  }
  std::shared_ptr<const Kernel> kernel = state_->from_disk(key, expanded);
  if (!kernel) kernel = state_->compiled(key, expanded);
  const std::lock_guard lock(state_->mutex);
  return state_->kernels.emplace(key, std::move(kernel)).first->second;
}

CompilerStatistics KernelCompiler::statistics() const {
  const std::lock_guard lock(state_->mutex);
  return state_->statistics;
}

}  // namespace stepc
