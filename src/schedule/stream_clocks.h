// What each stream of a Schedule knows to have ended, instruction by instruction: vector clocks (Fidge, Timestamps in
// message-passing systems, 1988). What a stream knows, it knows from its own order and from the marks that it has
// waited for. Internal to schedule/.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>

#include "schedule/schedule.h"

namespace stepc {

// By stream, one past the last of its instructions that is known to have ended.
class StreamClock {
 public:
  [[nodiscard]] size_t operator[](uint32_t stream) const {
    const auto found = ends_.find(stream);
    return found == ends_.end() ? 0 : found->second;
  }
  void reach(uint32_t stream, size_t end) { ends_[stream] = std::max(ends_[stream], end); }
  void join(const StreamClock& other) {
    for (const auto& [stream, end] : other.ends_) reach(stream, end);
  }

 private:
  std::map<uint32_t, size_t> ends_;
};

// Goes through the instructions in their order: begin() and end() of each.
//
//     i0 copy                       stream 0
//     i1 record  mark 0             stream 0
//     i2 wait    mark 0             stream 1    knows that i0 and i1 have ended
//     i3 exp                        stream 1
//     i4 record  mark 1             stream 1
//     i5 wait    mark 1             stream 0    knows that i2, i3 and i4 have ended
class StreamClocks {
 public:
  // What the instruction's stream knows when the instruction begins. A wait for a mark that nothing has reached teaches
  // nothing.
  const StreamClock& begin(const Instruction& one) {
    StreamClock& clock = clocks_[one.stream];
    if (!one.mark) return clock;
    if (one.kind == Instruction::Kind::kCollective) clock.join(clocks_[0]);
    if (const auto mark = marks_.find(*one.mark); one.kind == Instruction::Kind::kWait && mark != marks_.end())
      clock.join(mark->second);
    return clock;
  }
  // False: its mark was reached before.
  bool end(const Instruction& one, size_t at) {
    StreamClock& clock = clocks_[one.stream];
    clock.reach(one.stream, at + 1);
    return !one.mark || one.kind == Instruction::Kind::kWait || marks_.emplace(*one.mark, clock).second;
  }
  [[nodiscard]] bool is_reached(uint32_t mark) const { return marks_.contains(mark); }
  const StreamClock& of(uint32_t stream) { return clocks_[stream]; }

 private:
  std::map<uint32_t, StreamClock> clocks_;  // by stream
  std::map<uint32_t, StreamClock> marks_;   // what is known to whoever waits for it
};

}  // namespace stepc
