// What one instruction of the loop IR makes of its operands: the arithmetic that interpreters of mapped loops share.
// A value is its bits, in the low ones of 64: f32 and i32 take 32, a bool 1.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "loops/loop_program.h"

namespace stepc {

using ScalarBits = uint64_t;

inline ScalarBits scalar_of(float value) { return std::bit_cast<uint32_t>(value); }
inline ScalarBits scalar_of(double value) { return std::bit_cast<uint64_t>(value); }
inline ScalarBits scalar_of(int32_t value) { return static_cast<uint32_t>(value); }
inline ScalarBits scalar_of(int64_t value) { return static_cast<uint64_t>(value); }
inline ScalarBits scalar_of(bool value) { return value ? 1 : 0; }

// Of an instruction that computes, whose operands have type `from`; of kSelect and kScale, its own.
ScalarBits evaluate(const LoopInstruction& one, ValueType from, std::span<const ScalarBits> args);
ScalarBits combined(Combine combine, ValueType type, ScalarBits a, ScalarBits b);
ScalarBits constant_bits(const LoopInstruction& one);  // of kConstant, or where a kAccumulator starts

// An element in memory.
ScalarBits loaded(DType dtype, const uint8_t* from);
void stored(DType dtype, ScalarBits value, uint8_t* to);

}  // namespace stepc
