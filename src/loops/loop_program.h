// LoopProgram: one kernel as loops over scalars, the form that every code generator prints. A few phases, one after the
// other; each runs its items [0, items) in any order and on any number of threads, and what an item computes depends on
// nothing but its number, so neither do the bits. Plain data with a text form:
//
//   buffer b0: f32 input 4096
//   buffer b1: bf16 output 4096
//   buffer b2: f32 scratch 64 at 0
//   scratch 256
//   phase items 64 grain 8
//     v0 = loop i0 item
//       v1: f32 = accumulator sum from -0.0
//       v2 = loop i1 to 64 vector
//         v3: f32 = load b0[i0*64 + i1]
//         v4 = accumulate v1 v3
//       v5 = end
//       ...
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/dtype.h"
#include "loops/affine.h"
#include "ops/combine.h"

namespace stepc {

enum class LoopOp : uint8_t {
  // structure
  kLoop,               // of variable `loop`, to the matching kEnd
  kEnd,                //
  kAccumulator,        // starts at `real` or `integer`; `combine` says how; lives to its kFinish
  kAccumulate,         // (accumulator, value)
  kAccumulateProduct,  // (accumulator of a sum, a, b): adds a * b, rounded once where the machine can
  kFinish,             // (accumulator): its value; lanes of a vector loop are combined in a fixed order
  // memory and indices
  kConstant,
  kIndex,  // i64: the form `index`
  kLoad,   // of `buffer` at `index` + args[0] * `indirect`; where args[1] is false nothing is read and the value is 0
  kStore,  // args[0] to `buffer` at `index`
  // arithmetic, on one type
  kNeg,
  kAbs,
  kSqrt,
  kFloor,
  kCeil,
  kRound,  // to even
  kTrunc,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFma,    // args[0] * args[1] + args[2], rounded once where the machine can
  kScale,  // args[0] * 2^args[1], rounded once; args[1], of f32, is whole and from -252 to 254
  kMin,    // NaN wins
  kMax,
  kQuotient,  // of integers, toward zero; args[1] is not 0
  kBitAnd,
  kBitOr,
  kBitXor,
  kShiftLeft,
  kShiftRight,         // of the sign too
  kShiftRightLogical,  // zeros come in
  // comparisons, to bool
  kEq,
  kNe,
  kLt,
  kLe,
  kIsNan,
  kSelect,   // args[0] ? args[1] : args[2]
  kConvert,  // to `type`; to integers toward zero, out of range the smallest one; to bool: unlike 0
  kRoundTo,  // f32 or f64 to the nearest value of `dtype`; integers to the low bits of `dtype`
  kBits,     // the same bits as a type of the same size
  // elementary functions: of f64 by calls; of f32 until expand_math()
  kExp,
  kLog,
  kLog1p,
  kExpm1,
  kRsqrt,
  kSin,
  kCos,
  kTan,
  kTanh,
  kErf,
  kPow,
  kAtan2,
  kFmod,
};
std::string_view name_of(LoopOp op);
std::optional<LoopOp> loop_op_from_name(std::string_view name);
size_t operand_count(LoopOp op);
bool has_value(LoopOp op);  // that later instructions may take
bool is_access(LoopOp op);
bool is_accumulation(LoopOp op);

// What scalars are while they are computed with: f16 and bf16 are f32, integers i64. i32 is for the bits of an f32.
enum class ValueType : uint8_t { kF32, kF64, kI32, kI64, kBool };
std::string_view name_of(ValueType type);
bool is_real(ValueType type);
ValueType value_type_of(DType dtype);
DType stored_type(ValueType type);  // what keeps such a value in memory

std::string_view name_of(Combine combine);

struct LoopInstruction {
  LoopOp op = LoopOp::kConstant;
  ValueType type = ValueType::kF32;            // of the value
  std::array<int32_t, 3> args = {-1, -1, -1};  // earlier instructions of the phase
  double real = 0;
  int64_t integer = 0;
  Combine combine = Combine::kSum;
  DType dtype = DType::kF32;                            // kRoundTo
  uint32_t loop = 0;                                    // kLoop
  uint32_t buffer = 0;                                  // kLoad, kStore
  Affine index;                                         // kIndex, kLoad, kStore
  int64_t indirect = 0;                                 // kLoad
  bool operator==(const LoopInstruction& other) const;  // `real` by its bits
};

// A loop variable. The item loop comes first; kDigit variables follow from another one and have no loop of their own.
struct LoopVariable {
  enum class Kind : uint8_t {
    kItem,   // the items that the call runs
    kCount,  // 0 to extent
    kChunk,  // the item's share of 0 to extent: from item * block to the lesser of extent and (item + 1) * block
    kDigit,  // source / divisor % extent
  };
  Kind kind = Kind::kCount;
  int64_t extent = 1;
  bool vector = false;  // turns run in lanes
  int64_t block = 1;
  uint32_t source = 0;
  int64_t divisor = 1;
  bool operator==(const LoopVariable&) const = default;
};

struct LoopBuffer {
  enum class Kind : uint8_t { kInput, kOutput, kScratch, kLocal };  // kLocal: a thread's own, by item
  Kind kind = Kind::kInput;
  DType dtype = DType::kF32;
  int64_t count = 0;         // elements; of an input: up to the last one read
  int64_t scratch_byte = 0;  // kScratch: where in the kernel's scratch memory
  bool operator==(const LoopBuffer&) const = default;
};

struct LoopPhase {
  int64_t items = 1;
  int64_t grain = 1;  // items that are worth a thread's while
  std::vector<LoopVariable> variables;
  std::vector<LoopInstruction> instructions;
  bool operator==(const LoopPhase&) const = default;
};

struct LoopProgram {
  std::vector<LoopBuffer> buffers;  // inputs, outputs, then scratch and local ones
  std::vector<LoopPhase> phases;
  int64_t scratch_bytes = 0;
  // (input, output) pairs that may be one piece of memory: every element is read before it is written.
  std::vector<std::pair<uint32_t, uint32_t>> in_place;
  bool operator==(const LoopProgram&) const = default;
};

// The instruction that ends the loop which begins at `loop`.
size_t end_of_loop(const LoopPhase& phase, size_t loop);

std::string to_text(const LoopProgram& program);
// The program with that text, and a valid one: equal to what was printed. Throws UserError.
LoopProgram parse_loop_program(std::string_view text);
// The first broken promise: arguments before uses and of the right types, loops closed and their variables in scope,
// positions inside their buffers, nothing said that an instruction has no use for. Empty: none.
std::string problem_of(const LoopProgram& program);
void verify(const LoopProgram& program);  // throws InternalError with the problem

}  // namespace stepc
