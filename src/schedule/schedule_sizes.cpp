// What a Schedule amounts to.
#include <algorithm>

#include "base/check.h"
#include "ir/alignment.h"
#include "schedule/schedule.h"

namespace stepc {

namespace {
template <class F>
uint64_t aligned_bytes(const Schedule& schedule, F&& counts) {
  uint64_t bytes = 0;
  for (const Buffer& buffer : schedule.buffers)
    if (counts(buffer)) bytes += aligned(buffer.bytes);
  return bytes;
}
}  // namespace

uint64_t Schedule::own_bytes() const {
  return aligned_bytes(*this, [](const Buffer& buffer) { return buffer.kind == Buffer::Kind::kOwn; });
}

uint64_t Schedule::input_bytes() const {
  return aligned_bytes(*this, [&](const Buffer& buffer) {
    return buffer.kind == Buffer::Kind::kInput && buffer.input < inputs.size() &&
           is_of_program(inputs[buffer.input].kind);
  });
}

uint64_t Schedule::needed_bytes() const {
  const Space space = device.empty() ? Space::kHost : Space::kDevice;
  return arena_bytes - device_begin + aligned_bytes(*this, [&](const Buffer& buffer) {
           const bool is_programs = buffer.kind == Buffer::Kind::kInput && buffer.input < inputs.size() &&
                                    is_of_program(inputs[buffer.input].kind);
           return buffer.space == space && (is_programs || buffer.kind == Buffer::Kind::kOwn);
         });
}

size_t Schedule::count(Instruction::Kind kind) const {
  return static_cast<size_t>(std::ranges::count(instructions, kind, &Instruction::kind));
}

int64_t bytes_of(const Operand& operand) {
  int64_t bytes = size_of(operand.dtype);
  for (int64_t size : operand.sizes)
    INTERNAL_CHECK(!__builtin_mul_overflow(bytes, size, &bytes), "an operand of more bytes than can be counted");
  return bytes;
}

int64_t extent_of(const Operand& operand) {
  if (std::ranges::find(operand.sizes, 0) != operand.sizes.end()) return 0;
  int64_t end = operand.offset;
  bool overflows = __builtin_add_overflow(end, 1, &end);
  for (size_t d = 0; d < operand.sizes.size(); ++d) {
    int64_t move = 0;
    overflows = overflows || __builtin_mul_overflow(operand.sizes[d] - 1, operand.strides[d], &move) ||
                __builtin_add_overflow(end, std::max<int64_t>(move, 0), &end);
  }
  INTERNAL_CHECK(!overflows, "an operand reaches further than can be counted");
  return end;
}

bool draws(const Schedule& schedule) {
  return std::ranges::any_of(schedule.inputs, [](const ScheduleInput& input) { return input.kind == InputKind::kRng; });
}

}  // namespace stepc
