// The lanes of a vector loop: which of a turn's elements each of them is, which of them count, and how they come from
// memory and go there. Lanes either stand in the order of their elements or in pairs: the even elements, then the odd
// ones. Then two bf16 lie in each word of 32 bits, one above the other, and need no moving about. Private to codegen/.
//
//   in order   bf16 e0 e1 e2 e3 -> widened  e0 e1 e2 e3
//   in pairs   bf16 e0 e1 e2 e3 -> words e1:e0 e3:e2 -> shifted  e0 e2, masked  e1 e3
#pragma once

#include <vector>

#include <llvm/IR/IRBuilder.h>

#include "codegen/llvm_scalar.h"

namespace stepc {

class LlvmLanes {
 public:
  using V = llvm::Value;
  LlvmLanes(llvm::IRBuilder<>& builder, LlvmScalar& scalar, unsigned count, bool in_pairs)
      : b_(builder), scalar_(scalar), count_(count), in_pairs_(in_pairs) {}

  [[nodiscard]] unsigned count() const { return count_; }
  V* splat(V* value) { return LlvmScalar::is_vector(value) ? value : b_.CreateVectorSplat(count_, value); }
  V* elements();  // i64: the number of each lane's element in its turn

  // From now on only the first `left` elements of a turn count; unlimited(): all do.
  void limit(V* left);
  void unlimited() { mask_ = row_mask_ = nullptr; }
  [[nodiscard]] V* mask() const { return mask_; }  // by lane; nullptr: all count

  // Elements in a row from `place`, or one at each of `places`. Where `condition` (nullptr: true) does not hold and in
  // lanes that do not count nothing is read, and the value is 0.
  V* load(DType dtype, V* place, V* condition);
  V* gather(DType dtype, V* places, V* condition);
  void store(V* value, DType dtype, V* place);
  void scatter(V* value, DType dtype, V* places);

 private:
  [[nodiscard]] int element_of(int lane) const;
  V* in_lanes(V* row);
  V* in_row(V* lanes);
  V* both(V* mask, V* condition);
  static llvm::Align align_of(DType dtype) { return llvm::Align(static_cast<uint64_t>(size_of(dtype))); }

  llvm::IRBuilder<>& b_;
  LlvmScalar& scalar_;
  unsigned count_;
  bool in_pairs_;
  V* mask_ = nullptr;      // by lane
  V* row_mask_ = nullptr;  // by element
};

}  // namespace stepc
