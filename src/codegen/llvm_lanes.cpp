#include "codegen/llvm_lanes.h"

namespace stepc {

int LlvmLanes::element_of(int lane) const {
  const auto half = static_cast<int>(count_ / 2);
  if (!in_pairs_) return lane;
  return lane < half ? 2 * lane : 2 * (lane - half) + 1;
}

llvm::Value* LlvmLanes::elements() {
  std::vector<llvm::Constant*> numbers;
  for (unsigned lane = 0; lane < count_; ++lane)
    numbers.push_back(b_.getInt64(static_cast<uint64_t>(element_of(static_cast<int>(lane)))));
  return llvm::ConstantVector::get(numbers);
}

llvm::Value* LlvmLanes::in_lanes(V* row) {
  if (!in_pairs_) return row;
  std::vector<int> order(count_);
  for (unsigned lane = 0; lane < count_; ++lane) order[lane] = element_of(static_cast<int>(lane));
  return b_.CreateShuffleVector(row, order);
}
llvm::Value* LlvmLanes::in_row(V* lanes) {
  if (!in_pairs_) return lanes;
  std::vector<int> order(count_);
  for (unsigned lane = 0; lane < count_; ++lane)
    order[static_cast<size_t>(element_of(static_cast<int>(lane)))] = static_cast<int>(lane);
  return b_.CreateShuffleVector(lanes, order);
}

void LlvmLanes::limit(V* left) {
  llvm::Type* i32 = b_.getInt32Ty();
  std::vector<llvm::Constant*> numbers;
  for (unsigned k = 0; k < count_; ++k) numbers.push_back(b_.getInt32(k));
  llvm::Constant* in_order = llvm::ConstantVector::get(numbers);
  V* bound = splat(b_.CreateTrunc(left, i32));
  row_mask_ = b_.CreateICmpSLT(in_order, bound);
  mask_ = b_.CreateICmpSLT(in_lanes(in_order), bound);
}

llvm::Value* LlvmLanes::both(V* mask, V* condition) {
  if (condition == nullptr) return mask;
  return mask == nullptr ? splat(condition) : b_.CreateAnd(mask, splat(condition));
}

llvm::Value* LlvmLanes::load(DType dtype, V* place, V* condition) {
  auto* type = llvm::FixedVectorType::get(scalar_.memory_type(dtype), count_);
  if (condition != nullptr && LlvmScalar::is_vector(condition)) condition = in_row(condition);
  V* mask = both(row_mask_, condition);
  V* row = mask == nullptr
               ? static_cast<V*>(b_.CreateAlignedLoad(type, place, align_of(dtype)))
               : b_.CreateMaskedLoad(type, place, align_of(dtype), mask, llvm::Constant::getNullValue(type));
  return in_pairs_ && dtype == DType::kBF16 ? scalar_.widened_pairs(row) : scalar_.widened(in_lanes(row), dtype);
}

llvm::Value* LlvmLanes::gather(DType dtype, V* places, V* condition) {
  auto* type = llvm::FixedVectorType::get(scalar_.memory_type(dtype), count_);
  V* mask = both(mask_, condition);
  if (mask == nullptr) mask = splat(b_.getTrue());
  V* gathered = b_.CreateMaskedGather(type, places, align_of(dtype), mask, llvm::Constant::getNullValue(type));
  return scalar_.widened(gathered, dtype);
}

void LlvmLanes::store(V* value, DType dtype, V* place) {
  value = splat(value);
  V* row = in_pairs_ && dtype == DType::kBF16 ? scalar_.narrowed_pairs(value) : in_row(scalar_.narrowed(value, dtype));
  if (row_mask_ == nullptr)
    b_.CreateAlignedStore(row, place, align_of(dtype));
  else
    b_.CreateMaskedStore(row, place, align_of(dtype), row_mask_);
}

void LlvmLanes::scatter(V* value, DType dtype, V* places) {
  V* mask = mask_ != nullptr ? mask_ : splat(b_.getTrue());
  b_.CreateMaskedScatter(scalar_.narrowed(splat(value), dtype), places, align_of(dtype), mask);
}

}  // namespace stepc
