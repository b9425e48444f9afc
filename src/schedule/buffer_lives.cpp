#include "schedule/buffer_lives.h"

#include <algorithm>
#include <deque>
#include <map>

#include "schedule/stream_clocks.h"

namespace stepc {

namespace {

struct Held {
  size_t from = 0, until = 0;  // instructions
};

// How long the memory is held that each instruction uses.
std::vector<Held> held_by_instruction(const Schedule& schedule) {
  const size_t count = schedule.instructions.size();
  std::vector<Held> held(count + 1, {count, count});
  StreamClocks clocks;
  std::map<uint32_t, std::deque<size_t>> going;  // by stream: what stream 0 does not know to have ended
  for (size_t i = 0; i < count; ++i) {
    const Instruction& one = schedule.instructions[i];
    const StreamClock& clock = clocks.begin(one);
    if (one.stream == 0) {
      held[i] = {i, i};
      for (auto& [stream, indices] : going)
        for (; !indices.empty() && indices.front() < clock[stream]; indices.pop_front())
          held[indices.front()].until = i;
    } else {
      held[i].from = std::min(clock[0], i);
      going[one.stream].push_back(i);
    }
    clocks.end(one, i);
  }
  return held;
}

}  // namespace

std::vector<BufferLife> lives_of(const Schedule& schedule, bool with_outputs) {
  const std::vector<Held> held = held_by_instruction(schedule);
  std::vector<BufferLife> lives(schedule.buffers.size());
  const auto use = [&](OperandId id, size_t at, bool writes) {
    if (!id.valid()) return;
    BufferLife& life = lives[schedule.operands[id.index()].buffer.index()];
    if (life.first_use == BufferLife::kNever) life.first_use = at;
    if (life.first_write == BufferLife::kNever && writes) life.first_write = at;
    life.last_use = at;
    life.held_from = std::min(life.held_from, held[at].from);
    life.held_until = std::max(life.held_until, held[at].until);
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
