// LoopPrograms as machine code of a CPU, by LLVM: to the bytes of an object file, which may be kept, and from those to
// functions in memory. LLVM's headers stay in codegen's .cpp files.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "codegen/codegen.h"
#include "codegen/cpu_target.h"
#include "loops/loop_program.h"

namespace stepc {

// What is made once for many kernels of a CPU. For one thread at a time.
class ObjectCompiler {
 public:
  explicit ObjectCompiler(CpuTarget target);
  ~ObjectCompiler();
  ObjectCompiler(const ObjectCompiler&) = delete;
  ObjectCompiler& operator=(const ObjectCompiler&) = delete;

  // The bytes of an ELF object with one function a phase. Verifies the program and LLVM's view of it.
  std::string compile(const LoopProgram& program);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// "19.1.7".
std::string llvm_version();

// A process's linker for such objects.
class ObjectLoader {
 public:
  ObjectLoader();
  // Throws InternalError for bytes that are no object of ours. What is given keeps the code in memory.
  std::shared_ptr<const Kernel> load(const std::string& object, const LoopProgram& program);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace stepc
