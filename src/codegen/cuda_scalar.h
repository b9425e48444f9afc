// The scalar part of printed CUDA C++: what every kernel's text starts with, names of types, and the expression of one
// instruction of the loop IR. Private to codegen/.
#pragma once

#include <string>
#include <string_view>

#include "loops/loop_program.h"

namespace stepc {

std::string_view cuda_type(ValueType type);
std::string_view cuda_memory_type(DType dtype);
std::string cuda_constant(const LoopInstruction& one);  // of kConstant, or where a kAccumulator starts
// A value from an element in memory and back.
std::string cuda_from_memory(DType dtype, const std::string& element);
std::string cuda_to_memory(DType dtype, const std::string& value);
std::string cuda_combined(Combine combine, const std::string& a, const std::string& b);
// Of an instruction that computes; its operands are v0, v1 and so on.
std::string cuda_expression(const LoopPhase& phase, const LoopInstruction& one);

}  // namespace stepc
