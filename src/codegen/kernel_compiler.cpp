#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "base/clock.h"
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
  std::vector<std::unique_ptr<ObjectCompiler>> idle;             // of threads that are done with theirs
  CompilerStatistics statistics;

  // To be raised when the same loops become other machine code: what older builds have cached is then not found.
  static constexpr int kGenerator = 3;

  // All that the machine code depends on.
  [[nodiscard]] std::string key_of(const LoopProgram& program) const {
    return str("stepc {}.{} llvm {} cpu {} {} bits {}\n{}", STEPC_VERSION, kGenerator, llvm_version(), target.name,
               target.vector_bits, target.features, to_text(program));
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

  std::string object_of(const LoopProgram& program) {
    std::unique_ptr<ObjectCompiler> compiler;
    {
      const std::lock_guard lock(mutex);
      if (!idle.empty()) {
        compiler = std::move(idle.back());
        idle.pop_back();
      }
    }
    if (!compiler) compiler = std::make_unique<ObjectCompiler>(target);
    std::string object = compiler->compile(program);
    const std::lock_guard lock(mutex);
    idle.push_back(std::move(compiler));
    return object;
  }

  std::shared_ptr<const Kernel> compiled(const std::string& key, const LoopProgram& program) {
    const auto begin = Clock::now();
    const std::string object = object_of(program);
    std::shared_ptr<const Kernel> kernel = loader.load(object, program);
    const double seconds = seconds_since(begin);
    const std::string problem = cache.keep(key, object);
    const std::lock_guard lock(mutex);
    ++statistics.compiled;
    statistics.compile_seconds += seconds;
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

std::vector<std::shared_ptr<const Kernel>> KernelCompiler::compile_all(std::span<const LoopProgram> programs,
                                                                       size_t threads) {
  std::vector<std::shared_ptr<const Kernel>> kernels(programs.size());
  std::vector<std::exception_ptr> errors(programs.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < programs.size(); i = next++) {
      try {
        kernels[i] = compile(programs[i]);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (size_t k = 1; k < std::min(threads, programs.size()); ++k) others.emplace_back(work);
    work();
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  return kernels;
}

CompilerStatistics KernelCompiler::statistics() const {
  const std::lock_guard lock(state_->mutex);
  return state_->statistics;
}

}  // namespace stepc
