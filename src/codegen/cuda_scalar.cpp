#include "codegen/cuda_scalar.h"

#include <bit>

#include "base/check.h"
#include "codegen/cuda_source.h"
#include "ops/f8_bits.h"

namespace stepc {

namespace {

constexpr std::string_view kPrelude = R"(typedef long long i64;
typedef unsigned int u32;
typedef unsigned char u8;
typedef unsigned short u16;
extern __shared__ uint4 shared_words[];
static __device__ float from_bf16(u16 x) { return __uint_as_float(u32(x) << 16); }
static __device__ u16 to_bf16(float x) {
  const u32 bits = __float_as_uint(x);
  if (x != x) return (u16)((bits >> 16) | 0x40);
  return (u16)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
// float8 of so many bits of fraction, as LlvmScalar has it.
template <int kFraction> static __device__ float from_f8(u8 x) {
  const int bias = kFraction == 3 ? 7 : 15;
  const u32 size = x & 0x7F, placed = size << (23 - kFraction);
  u32 bits = placed + (u32(127 - bias) << 23);
  if (size < (1U << kFraction))
    bits = __float_as_uint((float)size * __uint_as_float(u32(128 - bias - kFraction) << 23));
  if (size >= (kFraction == 3 ? 0x7FU : 0x7CU)) bits = placed | 0x7F800000U;
  return __uint_as_float(bits | (u32(x & 0x80) << 24));
}
template <int kFraction> static __device__ u8 to_f8(float x) {
  const int bias = kFraction == 3 ? 7 : 15, shift = 23 - kFraction;
  const u32 bits = __float_as_uint(x), size = bits & 0x7FFFFFFFU, moved = u32(127 - bias) << 23;
  const u32 placer = u32(127 + 24 - bias - kFraction) << 23;
  u32 out = (size - moved + ((size >> shift) & 1) + ((1U << (shift - 1)) - 1)) >> shift;
  if (size < moved + (1U << 23)) out = __float_as_uint(__uint_as_float(size) + __uint_as_float(placer)) - placer;
  if (size >= (kFraction == 3 ? 0x43E80001U : 0x47700000U)) out = kFraction == 3 ? 0x7E : 0x7C;
  if (size > 0x7F800000U) out = 0x7F;
  return (u8)(out | ((bits >> 24) & 0x80));
}
#ifndef STEPC_ON_A_CPU
static __device__ float from_f16(u16 x) {
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(x));
  return out;
}
static __device__ u16 to_f16(float x) {
  u16 out;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(x));
  return out;
}
#endif
// Rounded so that a second rounding gives what one would have.
static __device__ float to_odd(double x) {
  const float nearest = (float)x;
  u32 bits = __float_as_uint(nearest);
  if (x != x || (double)nearest == x) return nearest;
  if (fabs((double)nearest) > fabs(x)) --bits;
  return __uint_as_float(bits | 1);
}
// x * 2^n in two steps, as 2^n itself may be no number where the result is one.
static __device__ float scaled(float x, float exponent) {
  const int n = (int)exponent, half = n >> 1;
  return x * __uint_as_float(u32(half + 127) << 23) * __uint_as_float(u32(n - half + 127) << 23);
}
static __device__ i64 to_i64(double x) { return fabs(x) < 9223372036854775808.0 ? (i64)x : (i64)(1ULL << 63); }
static __device__ int to_i32(double x) { return fabs(x) < 2147483648.0 ? (int)x : (int)(1U << 31); }
static __device__ i64 integer_power(i64 base, i64 exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 == 0 ? 1 : -1) : 0;
  unsigned long long result = 1, factor = (unsigned long long)base;
  for (unsigned long long rest = (unsigned long long)exponent; rest != 0; rest >>= 1) {
    if (rest & 1) result *= factor;
    factor *= factor;
  }
  return (i64)result;
}
template <class T> static __device__ T smaller(T a, T b) { return a != a ? a : a < b ? a : b; }
template <class T> static __device__ T larger(T a, T b) { return a != a ? a : a > b ? a : b; }
// So many bytes at once, aligned to their number.
template <int kBytes> struct Word;
template <> struct Word<1> { typedef u8 Type; };
template <> struct Word<2> { typedef u16 Type; };
template <> struct Word<4> { typedef u32 Type; };
template <> struct Word<8> { typedef uint2 Type; };
template <> struct Word<16> { typedef uint4 Type; };
template <int kBytes> static __device__ __forceinline__ void move(void* to, const void* from) {
  typedef typename Word<kBytes>::Type Type;
  *(Type*)to = *(const Type*)from;
}
template <class T> static __device__ __forceinline__ T neighbour(T x, int offset) {
  return __shfl_xor_sync(~0u, x, offset);
}
static __device__ __forceinline__ bool neighbour(bool x, int offset) {
  return __shfl_xor_sync(~0u, (int)x, offset) != 0;
}
)";

}  // namespace

std::string_view cuda_prelude() { return kPrelude; }

std::string_view cuda_type(ValueType type) {
  constexpr std::string_view kNames[] = {"float", "double", "int", "i64", "bool"};
  return kNames[static_cast<size_t>(type)];
}
std::string_view cuda_memory_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float";
    case DType::kF64:
      return "double";
    case DType::kBF16:
    case DType::kF16:
      return "u16";
    case DType::kI64:
      return "i64";
    case DType::kI32:
      return "int";
    case DType::kI16:
      return "short";
    case DType::kI8:
      return "signed char";
    default:
      return "u8";
  }
}

std::string cuda_constant(const LoopInstruction& one) {
  switch (one.type) {
    case ValueType::kF32:
      return str("__uint_as_float(0x{:x}U)", std::bit_cast<uint32_t>(static_cast<float>(one.real)));
    case ValueType::kF64:
      return str("__longlong_as_double(0x{:x}LL)", std::bit_cast<uint64_t>(one.real));
    case ValueType::kBool:
      return one.integer != 0 ? "true" : "false";
    default:
      return str("({})0x{:x}ULL", cuda_type(one.type), static_cast<uint64_t>(one.integer));
  }
}

std::string cuda_from_memory(DType dtype, const std::string& element) {
  if (dtype == DType::kBF16) return str("from_bf16({})", element);
  if (dtype == DType::kF16) return str("from_f16({})", element);
  if (is_float8(dtype)) return str("from_f8<{}>({})", f8_format(dtype).fraction_bits, element);
  if (dtype == DType::kBool) return str("{} != 0", element);
  return element;
}
std::string cuda_to_memory(DType dtype, const std::string& value) {
  if (dtype == DType::kBF16) return str("to_bf16({})", value);
  if (dtype == DType::kF16) return str("to_f16({})", value);
  if (is_float8(dtype)) return str("to_f8<{}>({})", f8_format(dtype).fraction_bits, value);
  return str("({})({})", cuda_memory_type(dtype), value);
}

std::string cuda_combined(Combine combine, const std::string& a, const std::string& b) {
  switch (combine) {
    case Combine::kSum:
      return str("{} + {}", a, b);
    case Combine::kProduct:
      return str("{} * {}", a, b);
    case Combine::kMax:
      return str("larger({}, {})", a, b);
    case Combine::kMin:
      return str("smaller({}, {})", a, b);
  }
  return a;
}

namespace {

std::string converted_text(const LoopInstruction& one, ValueType from, const std::string& a) {
  const bool was_real = from == ValueType::kF32 || from == ValueType::kF64;
  if (one.type == ValueType::kBool) return str("{} != 0", a);
  if (was_real && one.type == ValueType::kI64) return str("to_i64({})", a);
  if (was_real && one.type == ValueType::kI32) return str("to_i32({})", a);
  return str("({}){}", cuda_type(one.type), a);
}
std::string rounded_text(const LoopInstruction& one, ValueType from, const std::string& a) {
  const std::string narrow = from == ValueType::kF64 ? str("to_odd({})", a) : a;
  return cuda_from_memory(one.dtype, cuda_to_memory(one.dtype, narrow));
}
std::string bits_text(const LoopInstruction& one, ValueType from, const std::string& a) {
  if (from == one.type) return a;
  if (from == ValueType::kF32) return str("__float_as_int({})", a);
  if (from == ValueType::kI32) return str("__int_as_float({})", a);
  return from == ValueType::kF64 ? str("__double_as_longlong({})", a) : str("__longlong_as_double({})", a);
}

std::string_view sign_text(LoopOp op) {
  switch (op) {
    case LoopOp::kBitAnd:
      return "&";
    case LoopOp::kBitOr:
      return "|";
    case LoopOp::kBitXor:
      return "^";
    case LoopOp::kShiftRight:
      return ">>";
    case LoopOp::kEq:
      return "==";
    case LoopOp::kNe:
      return "!=";
    case LoopOp::kLt:
      return "<";
    case LoopOp::kLe:
      return "<=";
    default:
      return "/";
  }
}

}  // namespace

// Shifts and wrapping arithmetic on unsigned numbers.
namespace {

// Of a bool as a number by a constant (what dropout keeps, by its share) there are two values. A division calls a
// function in rare cases, across which registers are kept.
std::string quotient_of_bool(const LoopPhase& phase, const LoopInstruction& division) {
  const auto made_by = [&](int32_t arg) -> const LoopInstruction& {
    return phase.instructions[static_cast<size_t>(arg)];
  };
  const LoopInstruction &number = made_by(division.args[0]), &divisor = made_by(division.args[1]);
  if (number.op != LoopOp::kConvert || made_by(number.args[0]).type != ValueType::kBool ||
      divisor.op != LoopOp::kConstant || !is_real(division.type))
    return {};
  const auto quotient = [&](double value) {
    LoopInstruction constant;
    constant.type = division.type;
    constant.real = division.type == ValueType::kF32
                        ? static_cast<double>(static_cast<float>(value) / static_cast<float>(divisor.real))
                        : value / divisor.real;
    return cuda_constant(constant);
  };
  return str("v{} ? {} : {}", number.args[0], quotient(1), quotient(0));
}

}  // namespace

std::string cuda_expression(const LoopPhase& phase, const LoopInstruction& one) {
  const auto arg = [&](size_t k) { return one.args[k] >= 0 ? str("v{}", one.args[k]) : std::string(); };
  const ValueType from = phase.instructions[static_cast<size_t>(one.args[0])].type;
  const bool is_real = from == ValueType::kF32 || from == ValueType::kF64;
  const std::string f = from == ValueType::kF32 ? "f" : "";
  const std::string_view wide = from == ValueType::kI32 ? "(int)(u32)" : "(i64)(unsigned long long)";
  const auto infix = [&](const char* sign) {
    if (is_real) return str("{} {} {}", arg(0), sign, arg(1));
    return str("{}((unsigned long long){} {} (unsigned long long){})", wide, arg(0), sign, arg(1));
  };
  switch (one.op) {
    case LoopOp::kNeg:
      return is_real ? str("-{}", arg(0)) : str("{}(0ULL - (unsigned long long){})", wide, arg(0));
    case LoopOp::kAbs:
      return is_real ? str("fabs{}({})", f, arg(0))
                     : str("{0} < 0 ? {1}(0ULL - (unsigned long long){0}) : {0}", arg(0), wide);
    case LoopOp::kSqrt:
    case LoopOp::kFloor:
    case LoopOp::kCeil:
    case LoopOp::kTrunc:
      return str("{}{}({})", name_of(one.op), f, arg(0));
    case LoopOp::kRound:
      return str("rint{}({})", f, arg(0));
    case LoopOp::kAdd:
      return infix("+");
    case LoopOp::kSub:
      return infix("-");
    case LoopOp::kMul:
      return infix("*");
    case LoopOp::kDiv:
      if (const std::string two = quotient_of_bool(phase, one); !two.empty()) return two;
      return str("{} / {}", arg(0), arg(1));
    case LoopOp::kQuotient:
    case LoopOp::kShiftRight:
    case LoopOp::kEq:
    case LoopOp::kNe:
    case LoopOp::kLt:
    case LoopOp::kLe:
      return str("{} {} {}", arg(0), sign_text(one.op), arg(1));
    case LoopOp::kFma:
      return str("fma{}({}, {}, {})", f, arg(0), arg(1), arg(2));
    case LoopOp::kScale:
      return str("scaled({}, {})", arg(0), arg(1));
    case LoopOp::kMin:
      return str("smaller({}, {})", arg(0), arg(1));
    case LoopOp::kMax:
      return str("larger({}, {})", arg(0), arg(1));
    case LoopOp::kBitAnd:
    case LoopOp::kBitOr:
    case LoopOp::kBitXor:
      return str("({})({} {} {})", cuda_type(one.type), arg(0), sign_text(one.op), arg(1));
    case LoopOp::kShiftLeft:
      return str("{}((unsigned long long){} << {})", wide, arg(0), arg(1));
    case LoopOp::kShiftRightLogical:
      return from == ValueType::kI32 ? str("(int)((u32){} >> {})", arg(0), arg(1))
                                     : str("(i64)((unsigned long long){} >> {})", arg(0), arg(1));
    case LoopOp::kIsNan:
      return str("{0} != {0}", arg(0));
    case LoopOp::kSelect:
      return str("{} ? {} : {}", arg(0), arg(1), arg(2));
    case LoopOp::kConvert:
      return converted_text(one, from, arg(0));
    case LoopOp::kRoundTo:
      return rounded_text(one, from, arg(0));
    case LoopOp::kBits:
      return bits_text(one, from, arg(0));
    case LoopOp::kPow:
      if (!is_real) return str("integer_power({}, {})", arg(0), arg(1));
      [[fallthrough]];
    case LoopOp::kAtan2:
    case LoopOp::kFmod:
      return str("({}){}((double){}, (double){})", cuda_type(one.type), name_of(one.op), arg(0), arg(1));
    default:
      INTERNAL_CHECK(operand_count(one.op) == 1, "{} has no CUDA text", name_of(one.op));
      return str("({}){}((double){})", cuda_type(one.type), name_of(one.op), arg(0));
  }
}

}  // namespace stepc
