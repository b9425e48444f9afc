// A LoopProgram as an LLVM module: one function a phase, named phase_name(p). Private to codegen/.
#pragma once

#include <memory>
#include <string>

#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/Module.h>

#include "codegen/cpu_target.h"
#include "loops/loop_program.h"

namespace stepc {

inline std::string phase_name(size_t phase) { return "phase" + std::to_string(phase); }
std::unique_ptr<llvm::Module> llvm_module(llvm::LLVMContext& context, const LoopProgram& program,
                                          const CpuTarget& target);

}  // namespace stepc
