#include "codegen/llvm_scalar.h"

#include <bit>
#include <cmath>
#include <numeric>

#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/Module.h>

#include "base/check.h"
#include "ops/f8_bits.h"
#include "ops/integer_power.h"

namespace stepc {

namespace {

extern "C" int64_t stepc_integer_power(int64_t base, int64_t exponent) { return integer_power(base, exponent); }

template <class F>
void* address(F* function) {
  return reinterpret_cast<void*>(function);  // NOLINT: what a symbol table holds
}

}  // namespace

std::span<const CalledFunction> called_functions() {
  static const CalledFunction kFunctions[] = {
      {"stepc_exp", address<double(double)>(std::exp)},
      {"stepc_log", address<double(double)>(std::log)},
      {"stepc_log1p", address<double(double)>(std::log1p)},
      {"stepc_expm1", address<double(double)>(std::expm1)},
      {"stepc_sin", address<double(double)>(std::sin)},
      {"stepc_cos", address<double(double)>(std::cos)},
      {"stepc_tan", address<double(double)>(std::tan)},
      {"stepc_tanh", address<double(double)>(std::tanh)},
      {"stepc_erf", address<double(double)>(std::erf)},
      {"stepc_pow", address<double(double, double)>(std::pow)},
      {"stepc_atan2", address<double(double, double)>(std::atan2)},
      {"stepc_fmod", address<double(double, double)>(std::fmod)},
      {"floor", address<double(double)>(std::floor)},
      {"ceil", address<double(double)>(std::ceil)},
      {"nearbyint", address<double(double)>(std::nearbyint)},
      {"trunc", address<double(double)>(std::trunc)},
      {"floorf", address<float(float)>(std::floor)},
      {"ceilf", address<float(float)>(std::ceil)},
      {"nearbyintf", address<float(float)>(std::nearbyint)},
      {"truncf", address<float(float)>(std::trunc)},
      {"stepc_integer_power", address<int64_t(int64_t, int64_t)>(stepc_integer_power)},
  };
  return kFunctions;
}

llvm::Type* LlvmScalar::type_of(ValueType type) {
  switch (type) {
    case ValueType::kF32:
      return b_.getFloatTy();
    case ValueType::kF64:
      return b_.getDoubleTy();
    case ValueType::kI32:
      return b_.getInt32Ty();
    case ValueType::kI64:
      return b_.getInt64Ty();
    case ValueType::kBool:
      return b_.getInt1Ty();
  }
  return nullptr;
}

llvm::Type* LlvmScalar::memory_type(DType dtype) {
  if (dtype == DType::kF32) return b_.getFloatTy();
  if (dtype == DType::kF64) return b_.getDoubleTy();
  return b_.getIntNTy(static_cast<unsigned>(8 * size_of(dtype)));
}

llvm::Type* LlvmScalar::like(const V* shape, llvm::Type* element) {
  const auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(shape->getType());
  return vector == nullptr ? element : llvm::FixedVectorType::get(element, vector->getNumElements());
}
llvm::Value* LlvmScalar::real(const V* shape, llvm::Type* element, double value) {
  return llvm::ConstantFP::get(like(shape, element), value);
}
llvm::Value* LlvmScalar::whole(const V* shape, llvm::Type* element, uint64_t value) {
  return llvm::ConstantInt::get(like(shape, element), value);
}

llvm::Value* LlvmScalar::widened(V* loaded, DType dtype) {
  llvm::Type* i32 = b_.getInt32Ty();
  switch (dtype) {
    case DType::kBF16:
      return b_.CreateBitCast(b_.CreateShl(b_.CreateZExt(loaded, like(loaded, i32)), whole(loaded, i32, 16)),
                              like(loaded, b_.getFloatTy()));
    case DType::kF16:
      return f16_from_bits(loaded);
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return f8_from_bits(loaded, dtype);
    case DType::kBool:
      return b_.CreateICmpNE(loaded, whole(loaded, b_.getInt8Ty(), 0));
    case DType::kU8:
      return b_.CreateZExt(loaded, like(loaded, b_.getInt64Ty()));
    case DType::kI8:
    case DType::kI16:
    case DType::kI32:
      return b_.CreateSExt(loaded, like(loaded, b_.getInt64Ty()));
    default:
      return loaded;
  }
}

llvm::Value* LlvmScalar::narrowed(V* value, DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return b_.CreateTrunc(b_.CreateLShr(nearest_bf16(value), whole(value, b_.getInt32Ty(), 16)),
                            like(value, b_.getInt16Ty()));
    case DType::kF16:
      return bits_of_f16(value);
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return bits_of_f8(value, dtype);
    case DType::kBool:
      return b_.CreateZExt(value, like(value, b_.getInt8Ty()));
    case DType::kU8:
    case DType::kI8:
    case DType::kI16:
    case DType::kI32:
      return b_.CreateTrunc(value, like(value, memory_type(dtype)));
    default:
      return value;
  }
}

// The bits of f32, to be cut off below the upper half, which is then the nearest bf16, ties to even: adding half a
// unit, or one bit less where the kept part is even, carries into it. Not of NaN.
llvm::Value* LlvmScalar::moved_to_bf16(V* bits) {
  llvm::Type* i32 = b_.getInt32Ty();
  V* is_even = b_.CreateICmpEQ(b_.CreateAnd(bits, whole(bits, i32, 0x10000)), whole(bits, i32, 0));
  return b_.CreateAdd(bits, b_.CreateSelect(is_even, whole(bits, i32, 0x7FFF), whole(bits, i32, 0x8000)));
}
// A NaN stays one, quiet.
llvm::Value* LlvmScalar::nearest_bf16(V* f32) {
  llvm::Type* i32 = b_.getInt32Ty();
  V* bits = b_.CreateBitCast(f32, like(f32, i32));
  V* quiet = b_.CreateOr(bits, whole(bits, i32, 0x400000));
  return b_.CreateSelect(b_.CreateFCmpUNO(f32, f32), quiet, moved_to_bf16(bits));
}
llvm::Value* LlvmScalar::rounded_to_bf16(V* f32) {
  llvm::Type* i32 = b_.getInt32Ty();
  V* bits = b_.CreateBitCast(f32, like(f32, i32));
  V* kept = b_.CreateAnd(moved_to_bf16(bits), whole(bits, i32, 0xFFFF0000));
  return b_.CreateBitCast(b_.CreateSelect(b_.CreateFCmpUNO(f32, f32), bits, kept), f32->getType());
}

llvm::Value* LlvmScalar::widened_pairs(V* row) {
  llvm::Type* i32 = b_.getInt32Ty();
  const unsigned count = llvm::cast<llvm::FixedVectorType>(row->getType())->getNumElements();
  V* words = b_.CreateBitCast(row, llvm::FixedVectorType::get(i32, count / 2));
  V* even = b_.CreateShl(words, whole(words, i32, 16));
  V* odd = b_.CreateAnd(words, whole(words, i32, 0xFFFF0000));
  return b_.CreateBitCast(joined(even, odd), llvm::FixedVectorType::get(b_.getFloatTy(), count));
}

llvm::Value* LlvmScalar::narrowed_pairs(V* value) {
  llvm::Type* i32 = b_.getInt32Ty();
  const unsigned count = llvm::cast<llvm::FixedVectorType>(value->getType())->getNumElements();
  V* nearest = nearest_bf16(value);
  V* odd = half_of(nearest, 1);
  V* even = b_.CreateLShr(half_of(nearest, 0), whole(odd, i32, 16));
  V* upper = whole(odd, i32, 0xFFFF0000);
  // As one instruction: LLVM would make a permutation of it, which takes three times as long.
  V* words = count == 32 && target_.vector_bits == 512 ? b_.CreateIntrinsic(llvm::Intrinsic::x86_avx512_pternlog_d_512,
                                                                            {}, {even, odd, upper, b_.getInt32(0xF8)})
                                                       : b_.CreateOr(even, b_.CreateAnd(odd, upper));
  return b_.CreateBitCast(words, llvm::FixedVectorType::get(b_.getInt16Ty(), count));
}

llvm::Value* LlvmScalar::half_of(V* value, int number) {
  std::vector<int> lanes(llvm::cast<llvm::FixedVectorType>(value->getType())->getNumElements() / 2);
  std::iota(lanes.begin(), lanes.end(), number * static_cast<int>(lanes.size()));
  return b_.CreateShuffleVector(value, lanes);
}
llvm::Value* LlvmScalar::joined(V* low, V* high) {
  std::vector<int> lanes(2 * llvm::cast<llvm::FixedVectorType>(low->getType())->getNumElements());
  std::iota(lanes.begin(), lanes.end(), 0);
  return b_.CreateShuffleVector(low, high, lanes);
}

llvm::Value* LlvmScalar::f16_from_bits(V* i16) {
  llvm::Type* i32 = b_.getInt32Ty();
  if (target_.has_f16c)
    return b_.CreateFPExt(b_.CreateBitCast(i16, like(i16, b_.getHalfTy())), like(i16, b_.getFloatTy()));
  // Exponent and fraction at their f32 places, then times 2^112: that gives subnormals too. Infinity and NaN apart.
  V* bits = b_.CreateZExt(i16, like(i16, i32));
  V* sign = b_.CreateShl(b_.CreateAnd(bits, whole(bits, i32, 0x8000)), whole(bits, i32, 16));
  V* rest = b_.CreateShl(b_.CreateAnd(bits, whole(bits, i32, 0x7FFF)), whole(bits, i32, 13));
  llvm::Type* f32 = like(bits, b_.getFloatTy());
  V* scaled = b_.CreateFMul(b_.CreateBitCast(rest, f32), real(bits, b_.getFloatTy(), 0x1p112));
  V* special = b_.CreateOr(rest, whole(bits, i32, 0x7F800000));
  V* is_special = b_.CreateICmpUGE(rest, whole(bits, i32, 0x0F800000));
  V* magnitude = b_.CreateSelect(is_special, special, b_.CreateBitCast(scaled, bits->getType()));
  return b_.CreateBitCast(b_.CreateOr(sign, magnitude), f32);
}

llvm::Value* LlvmScalar::bits_of_f16(V* f32) {
  if (target_.has_f16c)
    return b_.CreateBitCast(b_.CreateFPTrunc(f32, like(f32, b_.getHalfTy())), like(f32, b_.getInt16Ty()));
  llvm::Type* i32 = b_.getInt32Ty();
  V* bits = b_.CreateBitCast(f32, like(f32, i32));
  V* magnitude = b_.CreateAnd(bits, whole(bits, i32, 0x7FFFFFFF));
  V* sign = b_.CreateLShr(b_.CreateAnd(bits, whole(bits, i32, 0x80000000)), whole(bits, i32, 16));
  // Normal: the exponent moves by 112, half a unit carries. From 65520 on that is infinity.
  V* odd = b_.CreateAnd(b_.CreateLShr(magnitude, whole(bits, i32, 13)), whole(bits, i32, 1));
  V* moved =
      b_.CreateAdd(b_.CreateSub(magnitude, whole(bits, i32, 112U << 23)), b_.CreateAdd(odd, whole(bits, i32, 0xFFF)));
  V* normal = b_.CreateLShr(moved, whole(bits, i32, 13));
  // Subnormal: adding 0.5 puts the unit of f16's smallest numbers at the last place of the sum, which rounds.
  V* shifted = b_.CreateFAdd(b_.CreateBitCast(magnitude, f32->getType()), real(f32, b_.getFloatTy(), 0.5));
  V* small = b_.CreateSub(b_.CreateBitCast(shifted, bits->getType()), whole(bits, i32, 0x3F000000));
  V* finite = b_.CreateSelect(b_.CreateICmpULT(magnitude, whole(bits, i32, 113U << 23)), small, normal);
  V* infinite =
      b_.CreateSelect(b_.CreateICmpUGE(magnitude, whole(bits, i32, 0x477FF000)), whole(bits, i32, 0x7C00), finite);
  V* nan = b_.CreateSelect(b_.CreateFCmpUNO(f32, f32), whole(bits, i32, 0x7E00), infinite);
  return b_.CreateTrunc(b_.CreateOr(sign, nan), like(f32, b_.getInt16Ty()));
}

// Exponent and fraction at their f32 places, moved by the difference of the biases; a subnormal as the number of its
// units. Infinity and NaN apart.
llvm::Value* LlvmScalar::f8_from_bits(V* i8, DType dtype) {
  const F8Format format = f8_format(dtype);
  llvm::Type* i32 = b_.getInt32Ty();
  V* bits = b_.CreateZExt(i8, like(i8, i32));
  llvm::Type* f32 = like(bits, b_.getFloatTy());
  V* sign = b_.CreateShl(b_.CreateAnd(bits, whole(bits, i32, 0x80)), whole(bits, i32, 24));
  V* size = b_.CreateAnd(bits, whole(bits, i32, 0x7F));
  const int shift = 23 - format.fraction_bits;
  V* placed = b_.CreateShl(size, whole(bits, i32, static_cast<uint64_t>(shift)));
  V* normal = b_.CreateAdd(placed, whole(bits, i32, static_cast<uint64_t>(127 - format.bias) << 23));
  V* units = b_.CreateFMul(b_.CreateSIToFP(size, f32),
                           real(bits, b_.getFloatTy(), std::ldexp(1.0, 1 - format.bias - format.fraction_bits)));
  V* is_small = b_.CreateICmpULT(size, whole(bits, i32, uint64_t{1} << format.fraction_bits));
  V* finite = b_.CreateSelect(is_small, b_.CreateBitCast(units, bits->getType()), normal);
  V* special = b_.CreateOr(placed, whole(bits, i32, 0x7F800000));
  const uint64_t first_special = dtype == DType::kF8E4M3 ? 0x7F : 0x7C;
  V* is_special = b_.CreateICmpUGE(size, whole(bits, i32, first_special));
  return b_.CreateBitCast(b_.CreateOr(sign, b_.CreateSelect(is_special, special, finite)), f32);
}

// As bits_of_f16(). What is too large to round is the largest, or infinity where the type has it.
llvm::Value* LlvmScalar::bits_of_f8(V* f32, DType dtype) {
  const F8Format format = f8_format(dtype);
  llvm::Type* i32 = b_.getInt32Ty();
  V* bits = b_.CreateBitCast(f32, like(f32, i32));
  V* magnitude = b_.CreateAnd(bits, whole(bits, i32, 0x7FFFFFFF));
  V* sign = b_.CreateLShr(b_.CreateAnd(bits, whole(bits, i32, 0x80000000)), whole(bits, i32, 24));
  const int shift = 23 - format.fraction_bits;
  const auto cut = whole(bits, i32, static_cast<uint64_t>(shift));
  const auto bias = static_cast<uint64_t>(127 - format.bias) << 23;
  V* odd = b_.CreateAnd(b_.CreateLShr(magnitude, cut), whole(bits, i32, 1));
  V* moved = b_.CreateAdd(b_.CreateSub(magnitude, whole(bits, i32, bias)),
                          b_.CreateAdd(odd, whole(bits, i32, (uint64_t{1} << (shift - 1)) - 1)));
  V* normal = b_.CreateLShr(moved, cut);
  // Subnormal: the sum with this number has its last place where the type's smallest numbers have their unit.
  const double placer = std::ldexp(1.0, 24 - format.bias - format.fraction_bits);
  V* shifted = b_.CreateFAdd(b_.CreateBitCast(magnitude, f32->getType()), real(f32, b_.getFloatTy(), placer));
  V* small = b_.CreateSub(b_.CreateBitCast(shifted, bits->getType()),
                          whole(bits, i32, std::bit_cast<uint32_t>(static_cast<float>(placer))));
  V* finite = b_.CreateSelect(b_.CreateICmpULT(magnitude, whole(bits, i32, bias + (uint64_t{1} << 23))), small, normal);
  // From half a unit above the largest on; of e4m3 the tie itself goes to the largest, which is even.
  const bool has_infinities = dtype == DType::kF8E5M2;
  const auto first_over =
      static_cast<uint64_t>(std::bit_cast<uint32_t>(has_infinities ? 61440.0F : 464.0F) + (has_infinities ? 0U : 1U));
  V* over = whole(bits, i32, has_infinities ? 0x7C : 0x7E);
  V* bounded = b_.CreateSelect(b_.CreateICmpUGE(magnitude, whole(bits, i32, first_over)), over, finite);
  V* all = b_.CreateSelect(b_.CreateFCmpUNO(f32, f32), whole(bits, i32, 0x7F), bounded);
  return b_.CreateTrunc(b_.CreateOr(sign, all), like(f32, b_.getInt8Ty()));
}

// To f32 so that a second rounding, to fewer digits, gives what one would have: an inexact result is made odd.
llvm::Value* LlvmScalar::to_odd_f32(V* f64) {
  llvm::Type* i32 = b_.getInt32Ty();
  V* nearest = b_.CreateFPTrunc(f64, like(f64, b_.getFloatTy()));
  V* back = b_.CreateFPExt(nearest, f64->getType());
  V* bits = b_.CreateBitCast(nearest, like(f64, i32));
  V* too_large = b_.CreateFCmpOGT(b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, back),
                                  b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, f64));
  V* below = b_.CreateSelect(too_large, b_.CreateSub(bits, whole(bits, i32, 1)), bits);
  V* odd = b_.CreateSelect(b_.CreateFCmpONE(back, f64), b_.CreateOr(below, whole(bits, i32, 1)), bits);
  return b_.CreateBitCast(odd, nearest->getType());
}

llvm::Value* LlvmScalar::rounded_to(V* value, DType dtype) {
  if (value->getType()->getScalarType()->isDoubleTy()) value = to_odd_f32(value);
  return dtype == DType::kBF16 ? rounded_to_bf16(value) : widened(narrowed(value, dtype), dtype);
}

llvm::Value* LlvmScalar::fused(V* a, V* b, V* c) {
  if (target_.has_fma) return b_.CreateIntrinsic(llvm::Intrinsic::fma, {a->getType()}, {a, b, c});
  return b_.CreateFAdd(b_.CreateFMul(a, b), c);
}

// NaN wins.
llvm::Value* LlvmScalar::extreme(bool largest, V* a, V* b) {
  llvm::Type* type = a->getType()->getScalarType();
  if (type->isIntegerTy(1)) return largest ? b_.CreateOr(a, b) : b_.CreateAnd(a, b);
  if (type->isIntegerTy())
    return b_.CreateBinaryIntrinsic(largest ? llvm::Intrinsic::smax : llvm::Intrinsic::smin, a, b);
  // The inner choice is one instruction of the machine, which gives b where one is NaN.
  V* wins = largest ? b_.CreateFCmpOGT(a, b) : b_.CreateFCmpOLT(a, b);
  return b_.CreateSelect(b_.CreateFCmpUNO(a, a), a, b_.CreateSelect(wins, a, b));
}

llvm::Value* LlvmScalar::combined(Combine combine, V* a, V* b) {
  const bool is_real = a->getType()->getScalarType()->isFloatingPointTy();
  switch (combine) {
    case Combine::kSum:
      return is_real ? b_.CreateFAdd(a, b) : b_.CreateAdd(a, b);
    case Combine::kProduct:
      return is_real ? b_.CreateFMul(a, b) : b_.CreateMul(a, b);
    case Combine::kMax:
      return extreme(true, a, b);
    case Combine::kMin:
      return extreme(false, a, b);
  }
  return a;
}

llvm::Value* LlvmScalar::converted(V* value, ValueType from, ValueType to) {
  const auto is_real = [](ValueType type) { return type == ValueType::kF32 || type == ValueType::kF64; };
  llvm::Type* type = like(value, type_of(to));
  if (from == to) return value;
  if (to == ValueType::kBool) {
    if (is_real(from)) return b_.CreateFCmpUNE(value, llvm::Constant::getNullValue(value->getType()));
    return b_.CreateICmpNE(value, llvm::Constant::getNullValue(value->getType()));
  }
  if (is_real(from) && is_real(to)) return b_.CreateFPCast(value, type);
  if (from == ValueType::kBool) return is_real(to) ? b_.CreateUIToFP(value, type) : b_.CreateZExt(value, type);
  if (is_real(to)) return b_.CreateSIToFP(value, type);
  if (!is_real(from)) return b_.CreateIntCast(value, type, true);
  // Out of range, and NaN: the smallest integer.
  const double limit = to == ValueType::kI64 ? 0x1p63 : 0x1p31;
  V* inside = b_.CreateFCmpOLT(b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, value),
                               llvm::ConstantFP::get(value->getType(), limit));
  V* safe = b_.CreateSelect(inside, value, llvm::Constant::getNullValue(value->getType()));
  const uint64_t smallest = to == ValueType::kI64 ? uint64_t{1} << 63 : uint64_t{1} << 31;
  return b_.CreateSelect(inside, b_.CreateFPToSI(safe, type), llvm::ConstantInt::get(type, smallest));
}

llvm::Value* LlvmScalar::call_a_lane(const std::string& name, const std::vector<V*>& args, llvm::Type* type) {
  const std::vector<llvm::Type*> types(args.size(), type);
  llvm::FunctionCallee callee = module_.getOrInsertFunction(name, llvm::FunctionType::get(type, types, false));
  auto* function = llvm::cast<llvm::Function>(callee.getCallee());
  function->setDoesNotThrow();
  function->setDoesNotAccessMemory();
  if (!is_vector(args[0])) return b_.CreateCall(callee, args);
  const unsigned lanes = llvm::cast<llvm::FixedVectorType>(args[0]->getType())->getNumElements();
  V* out = llvm::PoisonValue::get(args[0]->getType());
  for (unsigned lane = 0; lane < lanes; ++lane) {
    std::vector<V*> one;
    for (V* arg : args) one.push_back(b_.CreateExtractElement(arg, lane));
    out = b_.CreateInsertElement(out, b_.CreateCall(callee, one), lane);
  }
  return out;
}

// By calls in f64. Those of f32 that have polynomials have become other instructions before. Under names of our own:
// LLVM makes other functions of those that it knows (exp2 of pow, sincos of sin and cos), which nothing would link.
llvm::Value* LlvmScalar::elementary(LoopOp op, const std::vector<V*>& args) {
  llvm::Type* type = args[0]->getType();
  if (type->getScalarType()->isIntegerTy()) return call_a_lane("stepc_integer_power", args, b_.getInt64Ty());
  std::vector<V*> wide;
  for (V* arg : args) wide.push_back(b_.CreateFPCast(arg, like(arg, b_.getDoubleTy())));
  if (op == LoopOp::kRsqrt)
    return b_.CreateFPCast(
        b_.CreateFDiv(real(wide[0], b_.getDoubleTy(), 1), b_.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, wide[0])),
        type);
  return b_.CreateFPCast(call_a_lane(str("stepc_{}", name_of(op)), wide, b_.getDoubleTy()), type);
}

// In two steps without such an instruction: 2^n itself may be no number where the result is one. Only the last rounds.
llvm::Value* LlvmScalar::scaled(V* value, V* exponent) {
  llvm::Type* i32 = b_.getInt32Ty();
  if (target_.vector_bits == 512 && is_vector(value)) {
    const unsigned count = llvm::cast<llvm::FixedVectorType>(value->getType())->getNumElements();
    const auto scaled_16 = [&](V* some, V* by) -> V* {
      return b_.CreateIntrinsic(llvm::Intrinsic::x86_avx512_mask_scalef_ps_512, {},
                                {some, by, some, b_.getInt16(0xFFFF), b_.getInt32(4)});
    };
    if (count == 16) return scaled_16(value, exponent);
    return joined(scaled_16(half_of(value, 0), half_of(exponent, 0)),
                  scaled_16(half_of(value, 1), half_of(exponent, 1)));
  }
  V* whole_exponent = b_.CreateFPToSI(exponent, like(value, i32));
  V* half = b_.CreateAShr(whole_exponent, whole(value, i32, 1));
  const auto power_of_two = [&](V* power) {
    V* biased = b_.CreateAdd(power, whole(value, i32, 127));
    return b_.CreateBitCast(b_.CreateShl(biased, whole(value, i32, 23)), value->getType());
  };
  return b_.CreateFMul(b_.CreateFMul(value, power_of_two(half)), power_of_two(b_.CreateSub(whole_exponent, half)));
}

llvm::Value* LlvmScalar::compute(const LoopInstruction& one, ValueType from, const std::vector<V*>& args) {
  const bool is_real = from == ValueType::kF32 || from == ValueType::kF64;
  V* a = args[0];
  V* second = args.size() > 1 ? args[1] : nullptr;
  switch (one.op) {
    case LoopOp::kNeg:
      return is_real ? b_.CreateFNeg(a) : b_.CreateNeg(a);
    case LoopOp::kAbs:
      return is_real ? b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, a)
                     : b_.CreateBinaryIntrinsic(llvm::Intrinsic::abs, a, b_.getFalse());
    case LoopOp::kSqrt:
      return b_.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, a);
    case LoopOp::kFloor:
      return b_.CreateUnaryIntrinsic(llvm::Intrinsic::floor, a);
    case LoopOp::kCeil:
      return b_.CreateUnaryIntrinsic(llvm::Intrinsic::ceil, a);
    case LoopOp::kRound:
      return b_.CreateUnaryIntrinsic(llvm::Intrinsic::nearbyint, a);
    case LoopOp::kTrunc:
      return b_.CreateUnaryIntrinsic(llvm::Intrinsic::trunc, a);
    case LoopOp::kAdd:
      return is_real ? b_.CreateFAdd(a, second) : b_.CreateAdd(a, second);
    case LoopOp::kSub:
      return is_real ? b_.CreateFSub(a, second) : b_.CreateSub(a, second);
    case LoopOp::kMul:
      return is_real ? b_.CreateFMul(a, second) : b_.CreateMul(a, second);
    case LoopOp::kDiv:
      return b_.CreateFDiv(a, second);
    case LoopOp::kFma:
      return fused(a, second, args[2]);
    case LoopOp::kScale:
      return scaled(a, second);
    case LoopOp::kMin:
      return extreme(false, a, second);
    case LoopOp::kMax:
      return extreme(true, a, second);
    case LoopOp::kQuotient:
      return b_.CreateSDiv(a, second);
    case LoopOp::kBitAnd:
      return b_.CreateAnd(a, second);
    case LoopOp::kBitOr:
      return b_.CreateOr(a, second);
    case LoopOp::kBitXor:
      return b_.CreateXor(a, second);
    case LoopOp::kShiftLeft:
      return b_.CreateShl(a, second);
    case LoopOp::kShiftRight:
      return b_.CreateAShr(a, second);
    case LoopOp::kShiftRightLogical:
      return b_.CreateLShr(a, second);
    case LoopOp::kEq:
      return is_real ? b_.CreateFCmpOEQ(a, second) : b_.CreateICmpEQ(a, second);
    case LoopOp::kNe:
      return is_real ? b_.CreateFCmpUNE(a, second) : b_.CreateICmpNE(a, second);
    case LoopOp::kLt:
      return is_real ? b_.CreateFCmpOLT(a, second) : b_.CreateICmpSLT(a, second);
    case LoopOp::kLe:
      return is_real ? b_.CreateFCmpOLE(a, second) : b_.CreateICmpSLE(a, second);
    case LoopOp::kIsNan:
      return b_.CreateFCmpUNO(a, a);
    case LoopOp::kSelect:
      return b_.CreateSelect(a, second, args[2]);
    case LoopOp::kConvert:
      return converted(a, from, one.type);
    case LoopOp::kRoundTo:
      return rounded_to(a, one.dtype);
    case LoopOp::kBits:
      return b_.CreateBitCast(a, like(a, type_of(one.type)));
    default:
      return elementary(one.op, args);
  }
}

}  // namespace stepc
