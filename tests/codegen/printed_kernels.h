// Printed CUDA C++ as functions of this process: compiled by the machine's C++ compiler behind cuda_on_a_cpu.h.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include <dlfcn.h>

#include "base/check.h"
#include "codegen/cuda_source.h"
#include "tests/temp_dir.h"

namespace stepc {

class PrintedKernels {
 public:
  ~PrintedKernels() {
    if (library_ != nullptr) dlclose(library_);
  }
  // `root`: of the sources.
  explicit PrintedKernels(std::string root) : root_(std::move(root)) {}
  PrintedKernels(const PrintedKernels&) = delete;
  PrintedKernels& operator=(const PrintedKernels&) = delete;

  // Its number, for run().
  size_t add(const GpuProgram& program) {
    const std::string name = str("program{}_phase", scratch_bytes_.size());
    text_ += cuda_kernels(program, name);
    text_ += str("extern \"C\" bool run{}(void* const* buffers, bool backwards) {{\n", scratch_bytes_.size());
    for (size_t l = 0; l < program.launches.size(); ++l) {
      const GpuLaunch& launch = program.launches[l];
      text_ += str("  if (!launch({}{}, buffers, {}, {}, {}, backwards)) return false;\n", name, l, launch.blocks,
                   launch.block, program.synchronises(launch));
    }
    text_ += "  return true;\n}\n";
    scratch_bytes_.push_back(static_cast<size_t>(program.loops.scratch_bytes));
    return scratch_bytes_.size() - 1;
  }

  void compile() {
    std::ofstream(directory_ / "kernels.cpp") << "#include \"tests/codegen/cuda_on_a_cpu.h\"\n"
                                              << cuda_prelude() << text_;
    const std::string library = directory_ / "kernels.so";
    const std::string command = str(
        "c++ -std=c++20 -O0 -w -fPIC -shared -ffp-contract=off -fno-strict-aliasing -fwrapv -I '{}' '{}' -o '{}' 2>&1",
        root_, (directory_ / "kernels.cpp").string(), library);
    INTERNAL_CHECK_EQ(std::system(command.c_str()), 0, "{}", command);
    library_ = dlopen(library.c_str(), RTLD_NOW);
    INTERNAL_CHECK(library_ != nullptr, "{}", dlerror());
  }

  // The inputs' and outputs' memory, aligned to 16. False: a block's threads did not come to the same barriers.
  [[nodiscard]] bool run(size_t number, const std::vector<std::span<uint8_t>>& buffers, bool backwards) const {
    std::vector<uint8_t> scratch(scratch_bytes_[number], 0xEE);
    std::vector<void*> places;
    for (std::span<uint8_t> one : buffers) places.push_back(one.data());
    places.push_back(scratch.data());
    void* function = dlsym(library_, str("run{}", number).c_str());
    INTERNAL_CHECK(function != nullptr, "{}", dlerror());
    return reinterpret_cast<bool (*)(void* const*, bool)>(function)(places.data(),
                                                                    backwards);  // NOLINT: what dlsym gives
  }

 private:
  std::string root_;
  TempDir directory_;
  std::string text_;
  std::vector<size_t> scratch_bytes_;
  void* library_ = nullptr;
};

}  // namespace stepc
