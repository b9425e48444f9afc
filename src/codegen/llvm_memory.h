// The buffers of a phase and where its loops stand: which elements an instruction means there, and how they come from
// memory and go to it. Private to codegen/.
#pragma once

#include <optional>
#include <vector>

#include <llvm/IR/Function.h>
#include <llvm/IR/IRBuilder.h>

#include "codegen/llvm_lanes.h"
#include "codegen/llvm_scalar.h"
#include "loops/loop_program.h"

namespace stepc {

class LlvmMemory {
 public:
  using V = llvm::Value;
  // Writes to the builder's block, the function's first, where the buffers lie.
  LlvmMemory(const LoopProgram& program, const LoopPhase& phase, llvm::IRBuilder<>& builder, llvm::Function& function,
             LlvmScalar& scalar, LlvmLanes& lanes);

  // The variables that are digits of this one follow.
  void set_variable(uint32_t number, V* value);
  V* variable(uint32_t number) const { return variables_[number]; }
  // From now on that variable is lane 0's; none: there are no lanes.
  void set_vector_variable(std::optional<uint32_t> number) { vector_variable_ = number; }
  bool in_vector() const { return vector_variable_.has_value(); }

  V* index(const Affine& form);  // a vector where lanes differ
  // `chosen` and `condition` as args of the load; nullptr: none.
  V* load(const LoopInstruction& one, V* chosen, V* condition);
  void store(const LoopInstruction& one, V* value);
  // What a load or store in a row will reach when its form has moved by `step`.
  void prefetch(const LoopInstruction& one, int64_t step);

 private:
  V* i64(int64_t value) { return b_.getInt64(static_cast<uint64_t>(value)); }
  V* part_of(const AffineTerm& term);
  V* local_memory(const LoopBuffer& buffer);
  int64_t lane_stride(const Affine& form) const;
  V* first_place(uint32_t buffer, const Affine& form);
  V* places(uint32_t buffer, const Affine& form);

  const LoopProgram& program_;
  const LoopPhase& phase_;
  llvm::IRBuilder<>& b_;
  LlvmScalar& scalar_;
  LlvmLanes& lanes_;
  std::vector<V*> pointers_;   // by buffer
  std::vector<V*> variables_;  // by number
  V* zero_ = nullptr;          // where a load reads whose condition does not hold
  std::optional<uint32_t> vector_variable_;
};

}  // namespace stepc
