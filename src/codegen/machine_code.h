// MachineCode: CUDA C++ as a GPU's machine code, kept in a directory by the text that it is of: made once where NVRTC
// is, used where there is none. Safe to use from several threads, and with several processes on one directory.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "codegen/kernel_cache.h"

namespace stepc {

class Nvrtc;

class MachineCode {
 public:
  explicit MachineCode(std::filesystem::path directory);  // empty: nothing is kept
  ~MachineCode();
  MachineCode(const MachineCode&) = delete;
  MachineCode& operator=(const MachineCode&) = delete;

  // Whether what is not kept can be made.
  [[nodiscard]] bool has_compiler();
  // For compute capability `architecture` (90: sm_90). UserError where it is neither kept nor can be made.
  [[nodiscard]] std::string of(const std::string& source, int architecture);
  // Removes what texts of another time have left.
  void remove_unused() const;

 private:
  const Nvrtc& compiler();

  std::filesystem::path directory_;
  KernelCache cache_;
  std::mutex mutex_;
  std::unique_ptr<Nvrtc> compiler_;  // opened when something is to be made
  std::set<std::filesystem::path> used_;
};

}  // namespace stepc
