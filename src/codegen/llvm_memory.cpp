#include "codegen/llvm_memory.h"

#include <llvm/IR/Intrinsics.h>

#include "base/check.h"

namespace stepc {

namespace {
bool is_vector(const llvm::Value* value) { return value != nullptr && LlvmScalar::is_vector(value); }
llvm::Align align_of(const LoopBuffer& buffer) { return llvm::Align(static_cast<uint64_t>(size_of(buffer.dtype))); }
}  // namespace

LlvmMemory::LlvmMemory(const LoopProgram& program, const LoopPhase& phase, llvm::IRBuilder<>& builder,
                       llvm::Function& function, LlvmScalar& scalar, LlvmLanes& lanes)
    : program_(program),
      phase_(phase),
      b_(builder),
      scalar_(scalar),
      lanes_(lanes),
      variables_(phase.variables.size(), nullptr) {
  for (size_t k = 0; k < program_.buffers.size(); ++k) {
    const LoopBuffer& buffer = program_.buffers[k];
    if (buffer.kind == LoopBuffer::Kind::kScratch)
      pointers_.push_back(b_.CreateConstInBoundsGEP1_64(b_.getInt8Ty(), function.getArg(3),
                                                        static_cast<uint64_t>(buffer.scratch_byte)));
    else if (buffer.kind == LoopBuffer::Kind::kLocal)
      pointers_.push_back(local_memory(buffer));
    else
      pointers_.push_back(
          b_.CreateLoad(b_.getPtrTy(), b_.CreateConstInBoundsGEP1_64(b_.getPtrTy(), function.getArg(0), k)));
  }
  zero_ = b_.CreateAlloca(b_.getInt64Ty());
  b_.CreateStore(b_.getInt64(0), zero_);
}

llvm::Value* LlvmMemory::local_memory(const LoopBuffer& buffer) {
  auto* slots =
      b_.CreateAlloca(llvm::ArrayType::get(scalar_.memory_type(buffer.dtype), static_cast<uint64_t>(buffer.count)));
  slots->setAlignment(llvm::Align(64));
  return slots;
}

void LlvmMemory::set_variable(uint32_t number, V* value) {
  const LoopVariable& variable = phase_.variables[number];
  const int64_t extent = variable.kind == LoopVariable::Kind::kItem ? phase_.items : variable.extent;
  variables_[number] = value;
  for (size_t k = 0; k < phase_.variables.size(); ++k) {
    const LoopVariable& digit = phase_.variables[k];
    if (digit.kind != LoopVariable::Kind::kDigit || digit.source != number) continue;
    V* quotient = digit.divisor == 1 ? value : b_.CreateUDiv(value, i64(digit.divisor));
    const bool is_top = digit.divisor * digit.extent >= extent;
    variables_[k] = is_top ? quotient : b_.CreateURem(quotient, i64(digit.extent));
  }
}

int64_t LlvmMemory::lane_stride(const Affine& form) const {
  return vector_variable_ ? form.stride_of(*vector_variable_) : 0;
}

llvm::Value* LlvmMemory::part_of(const AffineTerm& term) {
  V* value = variables_[term.loop];
  return term.stride == 1 ? value : b_.CreateMul(value, i64(term.stride));
}

llvm::Value* LlvmMemory::index(const Affine& form) {
  V* first = i64(form.offset);
  for (const AffineTerm& term : form.terms) first = b_.CreateAdd(first, part_of(term));
  const int64_t stride = lane_stride(form);
  if (stride == 0) return first;
  return b_.CreateAdd(lanes_.splat(first), b_.CreateMul(lanes_.elements(), lanes_.splat(i64(stride))));
}

// What stands still in the vector loop comes first, so that it can leave the loop.
llvm::Value* LlvmMemory::first_place(uint32_t buffer, const Affine& form) {
  llvm::Type* type = scalar_.memory_type(program_.buffers[buffer].dtype);
  V* fixed = i64(form.offset);
  V* moving = nullptr;
  for (const AffineTerm& term : form.terms) {
    if (term.loop == vector_variable_)
      moving = part_of(term);
    else
      fixed = b_.CreateAdd(fixed, part_of(term));
  }
  V* row = b_.CreateGEP(type, pointers_[buffer], fixed);
  return moving == nullptr ? row : b_.CreateGEP(type, row, moving);
}

llvm::Value* LlvmMemory::places(uint32_t buffer, const Affine& form) {
  const int64_t stride = lane_stride(form);
  V* first = first_place(buffer, form);
  if (stride == 0) return first;
  V* moved = b_.CreateMul(lanes_.elements(), lanes_.splat(i64(stride)));
  return b_.CreateGEP(scalar_.memory_type(program_.buffers[buffer].dtype), first, moved);
}

llvm::Value* LlvmMemory::load(const LoopInstruction& one, V* chosen, V* condition) {
  const LoopBuffer& buffer = program_.buffers[one.buffer];
  llvm::Type* type = scalar_.memory_type(buffer.dtype);
  const bool in_a_row = lane_stride(one.index) == 1 && !is_vector(chosen);
  V* place = in_a_row ? first_place(one.buffer, one.index) : places(one.buffer, one.index);
  if (chosen != nullptr) {
    V* step = is_vector(chosen) ? lanes_.splat(i64(one.indirect)) : i64(one.indirect);
    place = b_.CreateGEP(type, place, b_.CreateMul(chosen, step));
  }
  if (in_a_row) return lanes_.load(buffer.dtype, place, condition);
  if (is_vector(place) || is_vector(condition)) return lanes_.gather(buffer.dtype, lanes_.splat(place), condition);
  if (condition != nullptr) place = b_.CreateSelect(condition, place, zero_);
  return scalar_.widened(b_.CreateAlignedLoad(type, place, align_of(buffer)), buffer.dtype);
}

void LlvmMemory::store(const LoopInstruction& one, V* value) {
  const LoopBuffer& buffer = program_.buffers[one.buffer];
  const int64_t stride = lane_stride(one.index);
  V* place = stride == 1 ? first_place(one.buffer, one.index) : places(one.buffer, one.index);
  if (stride == 1) return lanes_.store(value, buffer.dtype, place);
  if (stride != 0) return lanes_.scatter(value, buffer.dtype, place);
  INTERNAL_CHECK(!LlvmScalar::is_vector(value), "lanes are stored to one place");
  b_.CreateAlignedStore(scalar_.narrowed(value, buffer.dtype), place, align_of(buffer));
}

void LlvmMemory::prefetch(const LoopInstruction& one, int64_t step) {
  constexpr int64_t kLine = 64;
  const LoopBuffer& buffer = program_.buffers[one.buffer];
  V* place = b_.CreateGEP(scalar_.memory_type(buffer.dtype), first_place(one.buffer, one.index), i64(step));
  for (int64_t byte = 0; byte < lanes_.count() * size_of(buffer.dtype); byte += kLine) {
    V* line = b_.CreateGEP(b_.getInt8Ty(), place, i64(byte));
    V* is_write = b_.getInt32(one.op == LoopOp::kStore ? 1 : 0);
    V* into_all_caches = b_.getInt32(3);
    V* of_data = b_.getInt32(1);
    b_.CreateIntrinsic(llvm::Intrinsic::prefetch, {b_.getPtrTy()}, {line, is_write, into_all_caches, of_data});
  }
}

}  // namespace stepc
