#include "codegen/loop_scalar.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/check.h"
#include "ops/f16_bits.h"
#include "ops/f8_bits.h"
#include "ops/integer_power.h"
#include "ops/rounding.h"

namespace stepc {

namespace {

template <class T>
T scalar_as(ScalarBits bits) {
  if constexpr (std::is_same_v<T, float>) return std::bit_cast<float>(static_cast<uint32_t>(bits));
  if constexpr (std::is_same_v<T, double>) return std::bit_cast<double>(bits);
  return static_cast<T>(bits);
}

// NaN wins.
template <class T>
T smaller(T a, T b) {
  return a != a ? a : a < b ? a : b;
}
template <class T>
T larger(T a, T b) {
  return a != a ? a : a > b ? a : b;
}

template <class T>
ScalarBits compared(LoopOp op, T a, T b) {
  switch (op) {
    case LoopOp::kEq:
      return scalar_of(a == b);
    case LoopOp::kNe:
      return scalar_of(a != b);
    case LoopOp::kLt:
      return scalar_of(a < b);
    default:
      return scalar_of(a <= b);
  }
}

double elementary_value(LoopOp op, double a, double b) {
  switch (op) {
    case LoopOp::kExp:
      return std::exp(a);
    case LoopOp::kLog:
      return std::log(a);
    case LoopOp::kLog1p:
      return std::log1p(a);
    case LoopOp::kExpm1:
      return std::expm1(a);
    case LoopOp::kSin:
      return std::sin(a);
    case LoopOp::kCos:
      return std::cos(a);
    case LoopOp::kTan:
      return std::tan(a);
    case LoopOp::kTanh:
      return std::tanh(a);
    case LoopOp::kErf:
      return std::erf(a);
    case LoopOp::kPow:
      return std::pow(a, b);
    case LoopOp::kAtan2:
      return std::atan2(a, b);
    case LoopOp::kFmod:
      return std::fmod(a, b);
    default:
      INTERNAL_CHECK(false, "{} is not expanded", name_of(op));
  }
  return a;
}

template <class T>
ScalarBits real_value(const LoopInstruction& one, std::span<const ScalarBits> args) {
  const T a = scalar_as<T>(args[0]);
  const T b = args.size() > 1 ? scalar_as<T>(args[1]) : T();
  switch (one.op) {
    case LoopOp::kNeg:
      return scalar_of(-a);
    case LoopOp::kAbs:
      return scalar_of(std::abs(a));
    case LoopOp::kSqrt:
      return scalar_of(std::sqrt(a));
    case LoopOp::kFloor:
      return scalar_of(std::floor(a));
    case LoopOp::kCeil:
      return scalar_of(std::ceil(a));
    case LoopOp::kRound:
      return scalar_of(std::nearbyint(a));
    case LoopOp::kTrunc:
      return scalar_of(std::trunc(a));
    case LoopOp::kAdd:
      return scalar_of(a + b);
    case LoopOp::kSub:
      return scalar_of(a - b);
    case LoopOp::kMul:
      return scalar_of(a * b);
    case LoopOp::kDiv:
      return scalar_of(a / b);
    case LoopOp::kFma:
      return scalar_of(std::fma(a, b, scalar_as<T>(args[2])));
    case LoopOp::kScale:
      return scalar_of(std::ldexp(a, static_cast<int>(b)));
    case LoopOp::kMin:
      return scalar_of(smaller(a, b));
    case LoopOp::kMax:
      return scalar_of(larger(a, b));
    case LoopOp::kEq:
    case LoopOp::kNe:
    case LoopOp::kLt:
    case LoopOp::kLe:
      return compared(one.op, a, b);
    case LoopOp::kIsNan:
      return scalar_of(a != a);
    default:
      return scalar_of(static_cast<T>(elementary_value(one.op, static_cast<double>(a), static_cast<double>(b))));
  }
}

// T: i32, i64 or bool; arithmetic wraps.
template <class T>
ScalarBits whole_value(const LoopInstruction& one, std::span<const ScalarBits> args) {
  const T a = scalar_as<T>(args[0]);
  const T b = args.size() > 1 ? scalar_as<T>(args[1]) : T();
  const auto wide_a = static_cast<uint64_t>(a);
  const auto wide_b = static_cast<uint64_t>(b);
  const auto wrap = [](uint64_t value) { return scalar_of(static_cast<T>(value)); };
  constexpr int kBits = 8 * static_cast<int>(sizeof(T));
  switch (one.op) {
    case LoopOp::kNeg:
      return wrap(0 - wide_a);
    case LoopOp::kAbs:
      return a < T() ? wrap(0 - wide_a) : scalar_of(a);
    case LoopOp::kAdd:
      return wrap(wide_a + wide_b);
    case LoopOp::kSub:
      return wrap(wide_a - wide_b);
    case LoopOp::kMul:
      return wrap(wide_a * wide_b);
    case LoopOp::kMin:
      return scalar_of(smaller(a, b));
    case LoopOp::kMax:
      return scalar_of(larger(a, b));
    case LoopOp::kQuotient:
      return wrap(static_cast<uint64_t>(static_cast<int64_t>(a) / static_cast<int64_t>(b)));
    case LoopOp::kBitAnd:
      return wrap(wide_a & wide_b);
    case LoopOp::kBitOr:
      return wrap(wide_a | wide_b);
    case LoopOp::kBitXor:
      return wrap(wide_a ^ wide_b);
    case LoopOp::kShiftLeft:
      return wrap(wide_a << (wide_b % kBits));
    case LoopOp::kShiftRight:
      return wrap(static_cast<uint64_t>(static_cast<int64_t>(a) >> (wide_b % kBits)));
    case LoopOp::kShiftRightLogical:
      return kBits == 32 ? wrap(static_cast<uint32_t>(wide_a) >> (wide_b % kBits)) : wrap(wide_a >> (wide_b % kBits));
    case LoopOp::kEq:
    case LoopOp::kNe:
    case LoopOp::kLt:
    case LoopOp::kLe:
      return compared(one.op, a, b);
    case LoopOp::kPow:
      return wrap(static_cast<uint64_t>(integer_power(static_cast<int64_t>(a), static_cast<int64_t>(b))));
    default:
      INTERNAL_CHECK(false, "{} of integers", name_of(one.op));
  }
  return 0;
}

double as_double(ValueType type, ScalarBits value) {
  switch (type) {
    case ValueType::kF32:
      return static_cast<double>(scalar_as<float>(value));
    case ValueType::kF64:
      return scalar_as<double>(value);
    case ValueType::kI32:
      return scalar_as<int32_t>(value);
    case ValueType::kI64:
      return static_cast<double>(scalar_as<int64_t>(value));
    case ValueType::kBool:
      return value != 0 ? 1 : 0;
  }
  return 0;
}
int64_t as_whole(ValueType type, ScalarBits value) {
  return type == ValueType::kI32 ? scalar_as<int32_t>(value) : static_cast<int64_t>(value);
}

ScalarBits converted(ValueType from, ValueType to, ScalarBits value) {
  const bool was_real = is_real(from);
  switch (to) {
    case ValueType::kF64:
      return scalar_of(as_double(from, value));
    case ValueType::kF32:
      if (was_real) return scalar_of(static_cast<float>(as_double(from, value)));
      return scalar_of(static_cast<float>(as_whole(from, value)));
    case ValueType::kBool:
      return scalar_of(was_real ? as_double(from, value) != 0 : value != 0);
    case ValueType::kI64:
      return scalar_of(was_real ? truncated(as_double(from, value)) : as_whole(from, value));
    case ValueType::kI32: {
      if (!was_real) return scalar_of(static_cast<int32_t>(as_whole(from, value)));
      const double real = as_double(from, value);
      return scalar_of(std::abs(real) < 0x1p31 ? static_cast<int32_t>(real) : std::numeric_limits<int32_t>::min());
    }
  }
  return 0;
}

ScalarBits rounded_to(ValueType from, DType dtype, ScalarBits value) {
  if (!is_floating(dtype)) return scalar_of(wrapped(as_whole(from, value), dtype));
  const double nearest = rounded(as_double(from, value), dtype);
  return dtype == DType::kF64 ? scalar_of(nearest) : scalar_of(static_cast<float>(nearest));
}

}  // namespace

ScalarBits evaluate(const LoopInstruction& one, ValueType from, std::span<const ScalarBits> args) {
  switch (one.op) {
    case LoopOp::kSelect:
      return args[0] != 0 ? args[1] : args[2];
    case LoopOp::kConvert:
      return converted(from, one.type, args[0]);
    case LoopOp::kRoundTo:
      return rounded_to(from, one.dtype, args[0]);
    case LoopOp::kBits:
      return args[0];
    default:
      break;
  }
  switch (from) {
    case ValueType::kF32:
      return real_value<float>(one, args);
    case ValueType::kF64:
      return real_value<double>(one, args);
    case ValueType::kI32:
      return whole_value<int32_t>(one, args);
    case ValueType::kI64:
      return whole_value<int64_t>(one, args);
    case ValueType::kBool:
      return whole_value<bool>(one, args);
  }
  return 0;
}

ScalarBits combined(Combine combine, ValueType type, ScalarBits a, ScalarBits b) {
  constexpr LoopOp kOps[] = {LoopOp::kAdd, LoopOp::kMul, LoopOp::kMax, LoopOp::kMin};
  LoopInstruction one;
  one.op = kOps[static_cast<size_t>(combine)];
  one.type = type;
  const ScalarBits args[] = {a, b};
  return evaluate(one, type, args);
}

ScalarBits constant_bits(const LoopInstruction& one) {
  switch (one.type) {
    case ValueType::kF32:
      return scalar_of(static_cast<float>(one.real));
    case ValueType::kF64:
      return scalar_of(one.real);
    case ValueType::kI32:
      return scalar_of(static_cast<int32_t>(one.integer));
    case ValueType::kI64:
      return scalar_of(one.integer);
    case ValueType::kBool:
      return scalar_of(one.integer != 0);
  }
  return 0;
}

namespace {
template <class T>
T element_at(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
void put_element(uint8_t* to, T value) {
  std::memcpy(to, &value, sizeof value);
}
}  // namespace

ScalarBits loaded(DType dtype, const uint8_t* from) {
  switch (dtype) {
    case DType::kF32:
      return element_at<uint32_t>(from);
    case DType::kF64:
    case DType::kI64:
      return element_at<uint64_t>(from);
    case DType::kBF16:
      return uint64_t{element_at<uint16_t>(from)} << 16;
    case DType::kF16:
      return scalar_of(static_cast<float>(f16_value(element_at<uint16_t>(from))));
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return scalar_of(static_cast<float>(f8_value(*from, dtype)));
    case DType::kI32:
      return scalar_of(int64_t{element_at<int32_t>(from)});
    case DType::kI16:
      return scalar_of(int64_t{element_at<int16_t>(from)});
    case DType::kI8:
      return scalar_of(int64_t{element_at<int8_t>(from)});
    case DType::kBool:
      return scalar_of(*from != 0);
    default:
      return scalar_of(int64_t{*from});
  }
}

void stored(DType dtype, ScalarBits value, uint8_t* to) {
  switch (dtype) {
    case DType::kBF16: {
      const float real = scalar_as<float>(value);
      const float nearest = static_cast<float>(rounded(static_cast<double>(real), DType::kBF16));
      const uint32_t bits = real != real ? static_cast<uint32_t>(value) | 0x400000 : std::bit_cast<uint32_t>(nearest);
      return put_element(to, static_cast<uint16_t>(bits >> 16));
    }
    case DType::kF16:
      return put_element(to, f16_bits(rounded(static_cast<double>(scalar_as<float>(value)), DType::kF16)));
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return put_element(to, f8_bits(rounded(static_cast<double>(scalar_as<float>(value)), dtype), dtype));
    case DType::kBool:
      return put_element(to, static_cast<uint8_t>(value != 0));
    default:
      std::memcpy(to, &value, static_cast<size_t>(size_of(dtype)));
  }
}

}  // namespace stepc
