#include "schedule/buffer_lives.h"

namespace stepc {

std::vector<BufferLife> lives_of(const Schedule& schedule, bool with_outputs) {
  std::vector<BufferLife> lives(schedule.buffers.size());
  const auto use = [&](OperandId id, size_t at, bool writes) {
    if (!id.valid()) return;
    BufferLife& life = lives[schedule.operands[id.index()].buffer.index()];
    if (life.first_use == BufferLife::kNever) life.first_use = at;
    if (life.first_write == BufferLife::kNever && writes) life.first_write = at;
    life.last_use = at;
  };
  const size_t count = schedule.instructions.size();
  for (size_t i = 0; i < count; ++i) {
    for (OperandId id : schedule.instructions[i].reads) use(id, i, false);
    for (OperandId id : schedule.instructions[i].writes) use(id, i, true);
  }
  if (with_outputs)
    for (const ScheduleOutput& output : schedule.outputs) use(output.operand, count, false);
  return lives;
}

}  // namespace stepc
