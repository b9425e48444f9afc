// Random Schedules on three streams with records and waits, and other orders in which a device may run them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "base/text.h"
#include "memory/layout.h"
#include "schedule/buffer_lives.h"
#include "schedule/schedule.h"

namespace stepc::test {

// The arena by these lives.
inline void lay_out_arena(Schedule& schedule, const std::vector<BufferLife>& lives, bool until_last_use = false) {
  LayoutProblem problem;
  std::vector<size_t> buffers;
  for (size_t b = 0; b < lives.size(); ++b) {
    if (schedule.buffers[b].kind != Buffer::Kind::kArena) continue;
    buffers.push_back(b);
    const size_t first = until_last_use ? lives[b].first_use : lives[b].held_from;
    const size_t last = until_last_use ? lives[b].last_use : lives[b].held_until;
    problem.intervals.push_back(
        {schedule.buffers[b].bytes, static_cast<int64_t>(first), static_cast<int64_t>(last) + 1});
  }
  const Layout layout = plan_layout(problem);
  for (size_t k = 0; k < buffers.size(); ++k) schedule.buffers[buffers[k]].offset = layout.offsets[k];
  schedule.arena_bytes = layout.bytes;
  schedule.live_lower_bound_bytes = lower_bound(problem);
  for (Instruction& one : schedule.instructions) {
    one.allocations.clear();
    if (one.kind != Instruction::Kind::kOp) continue;
    const Buffer& buffer = schedule.buffers[schedule.operands[one.writes[0].index()].buffer.index()];
    one.allocations.push_back({buffer.bytes, buffer.offset, buffer.kind == Buffer::Kind::kOwn, Space::kHost});
  }
}

// Values are made on any stream from values of any stream, each behind the wait that this needs and no other. The arena
// is not laid out yet.
inline Schedule random_streams(uint64_t seed) {
  constexpr int kElements = 32;
  std::mt19937_64 random(seed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  Schedule schedule =
      parse_schedule(str("stepc.schedule 1\nfeatures none\nthreads 1\narena 0\nlive bound 0\n"
                         "layout \"best_fit\"\nnumbers 0\nbuffer b0: input {} of 0\n"
                         "operand %0: f32[{}] in b0\ninput 0: parameter \"w\" %0\n",
                         4 * kElements, kElements));
  const auto add = [&](Instruction::Kind kind, const char* op, uint32_t stream) -> Instruction& {
    Instruction& one = schedule.instructions.emplace_back();
    one.kind = kind;
    one.op = op;
    one.stream = stream;
    return one;
  };
  uint32_t marks = 0;
  std::map<std::pair<uint32_t, uint32_t>, size_t> known;  // by stream that waits and stream: its values that are known
  std::map<uint32_t, size_t> made;                        // values, by stream
  const auto wait_for = [&](uint32_t stream, uint32_t other) {
    add(Instruction::Kind::kRecord, "record", other).mark = marks;
    add(Instruction::Kind::kWait, "wait", stream).mark = marks++;
    known[{stream, other}] = made[other];
  };
  struct Value {
    uint32_t operand = 0, stream = 0;
    size_t number = 0;  // of its stream's
  };
  std::vector<Value> values = {{0, 0, 0}};
  const auto make = [&](Buffer::Kind kind, uint32_t stream, const Value& a, const Value& b) {
    for (const Value& read : {a, b})
      if (read.stream != stream && known[{stream, read.stream}] < read.number) wait_for(stream, read.stream);
    Buffer& buffer = schedule.buffers.emplace_back();
    buffer.kind = kind;
    buffer.bytes = 4 * kElements;
    schedule.operands.push_back({BufferId(schedule.buffers.size() - 1), DType::kF32, {kElements}, {1}});
    Instruction& one = add(Instruction::Kind::kOp, below(2) == 0 ? "add" : "sub", stream);
    one.reads = {OperandId(a.operand), OperandId(b.operand)};
    one.writes = {OperandId(schedule.operands.size() - 1)};
    return Value{static_cast<uint32_t>(schedule.operands.size() - 1), stream, ++made[stream]};
  };
  const auto recent = [&] { return values[values.size() - 1 - below(std::min<size_t>(values.size(), 4))]; };
  const size_t count = 6 + below(20);
  for (size_t i = 0; i < count; ++i)
    values.push_back(make(Buffer::Kind::kArena, static_cast<uint32_t>(below(3)), recent(), recent()));
  for (uint32_t stream = 1; stream < 3; ++stream) wait_for(0, stream);
  const Value last = make(Buffer::Kind::kOwn, 0, recent(), recent());
  schedule.outputs.emplace_back().operand = OperandId(last.operand);
  return schedule;
}

// The same with its instructions in another order that streams and marks allow.
inline Schedule in_other_order(const Schedule& schedule, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::map<uint32_t, std::vector<size_t>> left;  // by stream, the next one last
  for (size_t i = schedule.instructions.size(); i-- > 0;) left[schedule.instructions[i].stream].push_back(i);
  std::set<uint32_t> reached;
  Schedule out = schedule;
  out.instructions.clear();
  while (out.instructions.size() < schedule.instructions.size()) {
    auto& stream = left[static_cast<uint32_t>(random() % left.size())];
    if (stream.empty()) continue;
    const Instruction& one = schedule.instructions[stream.back()];
    if (one.kind == Instruction::Kind::kWait && !reached.contains(*one.mark)) continue;
    if (one.kind == Instruction::Kind::kRecord) reached.insert(*one.mark);
    out.instructions.push_back(one);
    stream.pop_back();
  }
  return out;
}

}  // namespace stepc::test
