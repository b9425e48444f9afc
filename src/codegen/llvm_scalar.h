// What one LoopInstruction computes, as LLVM IR on scalars and on vectors alike. Private to codegen/.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <llvm/IR/IRBuilder.h>

#include "codegen/cpu_target.h"
#include "loops/loop_program.h"

namespace stepc {

class LlvmScalar {
 public:
  LlvmScalar(llvm::IRBuilder<>& builder, llvm::Module& module, const CpuTarget& target)
      : b_(builder), module_(module), target_(target) {}

  [[nodiscard]] static bool is_vector(const llvm::Value* value) { return value->getType()->isVectorTy(); }
  llvm::Type* type_of(ValueType type);
  llvm::Type* memory_type(DType dtype);
  // From and to what lies in memory.
  llvm::Value* widened(llvm::Value* loaded, DType dtype);
  llvm::Value* narrowed(llvm::Value* value, DType dtype);
  // bf16 in a row, from and to all even elements and then all odd ones.
  llvm::Value* widened_pairs(llvm::Value* row);
  llvm::Value* narrowed_pairs(llvm::Value* value);

  // `args` are all scalars or all vectors; `from` is the type of the first.
  llvm::Value* compute(const LoopInstruction& one, ValueType from, const std::vector<llvm::Value*>& args);
  llvm::Value* combined(Combine combine, llvm::Value* a, llvm::Value* b);
  llvm::Value* fused(llvm::Value* a, llvm::Value* b, llvm::Value* c);  // a * b + c

 private:
  using V = llvm::Value;
  llvm::Type* like(const V* shape, llvm::Type* element);
  V* real(const V* shape, llvm::Type* element, double value);
  V* whole(const V* shape, llvm::Type* element, uint64_t value);
  V* moved_to_bf16(V* bits);
  V* nearest_bf16(V* f32);
  V* rounded_to_bf16(V* f32);
  V* half_of(V* value, int number);
  V* joined(V* low, V* high);
  V* scaled(V* value, V* exponent);
  V* bits_of_f16(V* f32);
  V* f16_from_bits(V* i16);
  V* bits_of_f8(V* f32, DType dtype);
  V* f8_from_bits(V* i8, DType dtype);
  V* to_odd_f32(V* f64);
  V* extreme(bool largest, V* a, V* b);
  V* converted(V* value, ValueType from, ValueType to);
  V* rounded_to(V* value, DType dtype);
  V* call_a_lane(const std::string& name, const std::vector<V*>& args, llvm::Type* type);
  V* elementary(LoopOp op, const std::vector<V*>& args);

  llvm::IRBuilder<>& b_;
  llvm::Module& module_;
  const CpuTarget& target_;
};

// What the generated code may call: C functions by their names.
struct CalledFunction {
  const char* name;
  void* address;
};
std::span<const CalledFunction> called_functions();

}  // namespace stepc
