#include "codegen/cuda_source.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace stepc {

namespace {

constexpr std::string_view kPrelude = R"(typedef long long i64;
typedef unsigned int u32;
static __device__ float from_bf16(unsigned short x) { return __uint_as_float(u32(x) << 16); }
static __device__ unsigned short to_bf16(float x) {
  const u32 bits = __float_as_uint(x);
  if (x != x) return (unsigned short)((bits >> 16) | 0x40);
  return (unsigned short)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
static __device__ float from_f16(unsigned short x) {
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(x));
  return out;
}
static __device__ unsigned short to_f16(float x) {
  unsigned short out;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(x));
  return out;
}
// Rounded so that a second rounding gives what one would have.
static __device__ float to_odd(double x) {
  const float nearest = (float)x;
  u32 bits = __float_as_uint(nearest);
  if (x != x || (double)nearest == x) return nearest;
  if (fabs((double)nearest) > fabs(x)) --bits;
  return __uint_as_float(bits | 1);
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
)";

std::string_view type_text(ValueType type) {
  constexpr std::string_view kNames[] = {"float", "double", "int", "i64", "bool"};
  return kNames[static_cast<size_t>(type)];
}
std::string_view memory_text(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float";
    case DType::kF64:
      return "double";
    case DType::kBF16:
    case DType::kF16:
      return "unsigned short";
    case DType::kI64:
      return "i64";
    case DType::kI32:
      return "int";
    case DType::kI16:
      return "short";
    case DType::kI8:
      return "signed char";
    default:
      return "unsigned char";
  }
}

std::string constant_of(ValueType type, double real, int64_t integer) {
  switch (type) {
    case ValueType::kF32:
      return str("__uint_as_float(0x{:x}U)", std::bit_cast<uint32_t>(static_cast<float>(real)));
    case ValueType::kF64:
      return str("__longlong_as_double(0x{:x}LL)", std::bit_cast<uint64_t>(real));
    case ValueType::kBool:
      return integer != 0 ? "true" : "false";
    default:
      return str("({})0x{:x}ULL", type_text(type), static_cast<uint64_t>(integer));
  }
}

std::string form_text(const Affine& affine) {
  std::string out = str("{}LL", affine.offset);
  for (const AffineTerm& term : affine.terms) out += str(" + i{} * {}LL", term.loop, term.stride);
  return out;
}

class PhasePrinter {
 public:
  PhasePrinter(const LoopProgram& program, const LoopPhase& phase, size_t number)
      : program_(program), phase_(phase), number_(number) {}

  std::string print() {
    out_ = str(
        "extern \"C\" __global__ void phase{}(void* const* buffers, i64 begin, i64 end, unsigned char* scratch) {{\n",
        number_);
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      const LoopBuffer& buffer = program_.buffers[b];
      const std::string_view type = memory_text(buffer.dtype);
      if (buffer.kind == LoopBuffer::Kind::kLocal)
        out_ += str("  {} b{}[{}];\n", type, b, buffer.count);
      else if (buffer.kind == LoopBuffer::Kind::kScratch)
        out_ += str("  {}* const b{} = ({}*)(scratch + {});\n", type, b, type, buffer.scratch_byte);
      else
        out_ += str("  {}* const b{} = ({}*)buffers[{}];\n", type, b, type, b);
    }
    for (size_t i = 0; i < phase_.instructions.size(); ++i) print(i, phase_.instructions[i]);
    return out_ + "}\n";
  }

 private:
  void line(const std::string& text) { out_ += std::string(indent_, ' ') + text + "\n"; }
  static std::string value(int32_t id) { return str("v{}", id); }

  void print_loop(uint32_t loop) {
    const LoopVariable& variable = phase_.variables[loop];
    switch (variable.kind) {
      case LoopVariable::Kind::kItem:
        line(
            str("for (i64 i{0} = begin + (i64)blockIdx.x * blockDim.x + threadIdx.x; i{0} < end; "
                "i{0} += (i64)gridDim.x * blockDim.x) {{",
                loop));
        break;
      case LoopVariable::Kind::kChunk:
        line(str("for (i64 i{0} = i0 * {1}LL; i{0} < smaller(i0 * {1}LL + {1}LL, {2}LL); ++i{0}) {{", loop,
                 variable.block, variable.extent));
        break;
      default:
        line(str("for (i64 i{0} = 0; i{0} < {1}LL; ++i{0}) {{", loop, variable.extent));
    }
    indent_ += 2;
    for (size_t k = 0; k < phase_.variables.size(); ++k) {
      const LoopVariable& digit = phase_.variables[k];
      if (digit.kind == LoopVariable::Kind::kDigit && digit.source == loop)
        line(str("const i64 i{} = i{} / {}LL % {}LL;", k, loop, digit.divisor, digit.extent));
    }
  }

  static std::string from_memory(DType dtype, const std::string& element) {
    if (dtype == DType::kBF16) return str("from_bf16({})", element);
    if (dtype == DType::kF16) return str("from_f16({})", element);
    if (dtype == DType::kBool) return str("{} != 0", element);
    return element;
  }
  static std::string to_memory(DType dtype, const std::string& value) {
    if (dtype == DType::kBF16) return str("to_bf16({})", value);
    if (dtype == DType::kF16) return str("to_f16({})", value);
    return str("({})({})", memory_text(dtype), value);
  }

  std::string load_text(const LoopInstruction& one) const {
    std::string index = form_text(one.index);
    if (one.args[0] >= 0) index += str(" + v{} * {}LL", one.args[0], one.indirect);
    const DType dtype = program_.buffers[one.buffer].dtype;
    std::string element = from_memory(dtype, str("b{}[{}]", one.buffer, index));
    if (one.args[1] < 0) return element;
    return str("v{} ? ({})({}) : ({})0", one.args[1], type_text(one.type), element, type_text(one.type));
  }

  static std::string combine_text(Combine combine, const std::string& a, const std::string& b) {
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

  std::string converted(const LoopInstruction& one, ValueType from, const std::string& a) const {
    const bool was_real = from == ValueType::kF32 || from == ValueType::kF64;
    if (one.type == ValueType::kBool) return str("{} != 0", a);
    if (was_real && one.type == ValueType::kI64) return str("to_i64({})", a);
    if (was_real && one.type == ValueType::kI32) return str("to_i32({})", a);
    return str("({}){}", type_text(one.type), a);
  }
  static std::string rounded(const LoopInstruction& one, ValueType from, const std::string& a) {
    const std::string narrow = from == ValueType::kF64 ? str("to_odd({})", a) : a;
    return from_memory(one.dtype, to_memory(one.dtype, narrow));
  }
  static std::string bits(const LoopInstruction& one, ValueType from, const std::string& a) {
    if (from == one.type) return a;
    if (from == ValueType::kF32) return str("__float_as_int({})", a);
    if (from == ValueType::kI32) return str("__int_as_float({})", a);
    return from == ValueType::kF64 ? str("__double_as_longlong({})", a) : str("__longlong_as_double({})", a);
  }

  // Shifts and wrapping arithmetic on unsigned numbers.
  std::string computed(const LoopInstruction& one) const {
    const auto arg = [&](size_t k) { return one.args[k] >= 0 ? value(one.args[k]) : std::string(); };
    const ValueType from = phase_.instructions[static_cast<size_t>(one.args[0])].type;
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
        return str("sqrt{}({})", f, arg(0));
      case LoopOp::kFloor:
        return str("floor{}({})", f, arg(0));
      case LoopOp::kCeil:
        return str("ceil{}({})", f, arg(0));
      case LoopOp::kRound:
        return str("rint{}({})", f, arg(0));
      case LoopOp::kTrunc:
        return str("trunc{}({})", f, arg(0));
      case LoopOp::kAdd:
        return infix("+");
      case LoopOp::kSub:
        return infix("-");
      case LoopOp::kMul:
        return infix("*");
      case LoopOp::kDiv:
      case LoopOp::kQuotient:
        return str("{} / {}", arg(0), arg(1));
      case LoopOp::kFma:
        return str("fma{}({}, {}, {})", f, arg(0), arg(1), arg(2));
      case LoopOp::kScale:
        return str("ldexpf({}, (int){})", arg(0), arg(1));
      case LoopOp::kMin:
        return str("smaller({}, {})", arg(0), arg(1));
      case LoopOp::kMax:
        return str("larger({}, {})", arg(0), arg(1));
      case LoopOp::kBitAnd:
        return str("({})({} & {})", type_text(one.type), arg(0), arg(1));
      case LoopOp::kBitOr:
        return str("({})({} | {})", type_text(one.type), arg(0), arg(1));
      case LoopOp::kBitXor:
        return str("({})({} ^ {})", type_text(one.type), arg(0), arg(1));
      case LoopOp::kShiftLeft:
        return str("{}((unsigned long long){} << {})", wide, arg(0), arg(1));
      case LoopOp::kShiftRight:
        return str("{} >> {}", arg(0), arg(1));
      case LoopOp::kShiftRightLogical:
        return from == ValueType::kI32 ? str("(int)((u32){} >> {})", arg(0), arg(1))
                                       : str("(i64)((unsigned long long){} >> {})", arg(0), arg(1));
      case LoopOp::kEq:
        return str("{} == {}", arg(0), arg(1));
      case LoopOp::kNe:
        return str("{} != {}", arg(0), arg(1));
      case LoopOp::kLt:
        return str("{} < {}", arg(0), arg(1));
      case LoopOp::kLe:
        return str("{} <= {}", arg(0), arg(1));
      case LoopOp::kIsNan:
        return str("{0} != {0}", arg(0));
      case LoopOp::kSelect:
        return str("{} ? {} : {}", arg(0), arg(1), arg(2));
      case LoopOp::kConvert:
        return converted(one, from, arg(0));
      case LoopOp::kRoundTo:
        return rounded(one, from, arg(0));
      case LoopOp::kBits:
        return bits(one, from, arg(0));
      case LoopOp::kPow:
        if (!is_real) return str("integer_power({}, {})", arg(0), arg(1));
        [[fallthrough]];
      case LoopOp::kAtan2:
      case LoopOp::kFmod:
        return str("({}){}((double){}, (double){})", type_text(one.type), name_of(one.op), arg(0), arg(1));
      default:
        INTERNAL_CHECK(operand_count(one.op) == 1, "{} has no CUDA text", name_of(one.op));
        return str("({}){}((double){})", type_text(one.type), name_of(one.op), arg(0));
    }
  }

  void print(size_t place, const LoopInstruction& one) {
    const std::string_view type = type_text(one.type);
    switch (one.op) {
      case LoopOp::kLoop:
        return print_loop(one.loop);
      case LoopOp::kEnd:
        indent_ -= 2;
        return line("}");
      case LoopOp::kConstant:
        return line(str("const {} v{} = {};", type, place, constant_of(one.type, one.real, one.integer)));
      case LoopOp::kAccumulator:
        return line(str("{} v{} = {};", type, place, constant_of(one.type, one.real, one.integer)));
      case LoopOp::kAccumulate: {
        const auto accumulator = static_cast<size_t>(one.args[0]);
        const Combine combine = phase_.instructions[accumulator].combine;
        return line(str("v{} = {};", accumulator, combine_text(combine, value(one.args[0]), value(one.args[1]))));
      }
      case LoopOp::kAccumulateProduct:
        return line(str("v{0} = fma{1}(v{2}, v{3}, v{0});", one.args[0], one.type == ValueType::kF32 ? "f" : "",
                        one.args[1], one.args[2]));
      case LoopOp::kFinish:
        return line(str("const {} v{} = v{};", type, place, one.args[0]));
      case LoopOp::kIndex:
        return line(str("const i64 v{} = {};", place, form_text(one.index)));
      case LoopOp::kLoad:
        return line(str("const {} v{} = {};", type, place, load_text(one)));
      case LoopOp::kStore:
        return line(str("b{}[{}] = {};", one.buffer, form_text(one.index),
                        to_memory(program_.buffers[one.buffer].dtype, value(one.args[0]))));
      default:
        return line(str("const {} v{} = {};", type, place, computed(one)));
    }
  }

  const LoopProgram& program_;
  const LoopPhase& phase_;
  size_t number_;
  size_t indent_ = 2;
  std::string out_;
};

}  // namespace

std::string cuda_source(const LoopProgram& program) {
  verify(program);
  std::string out(kPrelude);
  for (size_t p = 0; p < program.phases.size(); ++p) out += PhasePrinter(program, program.phases[p], p).print();
  return out;
}

std::vector<std::string> cuda_options(const std::string& architecture) {
  return {"--gpu-architecture=" + architecture, "--fmad=false", "--std=c++17"};
}

}  // namespace stepc
