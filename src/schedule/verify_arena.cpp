#include "schedule/verify_arena.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "ir/alignment.h"
#include "ops/op_def.h"
#include "schedule/buffer_lives.h"

namespace stepc {

namespace {

// Goes through the instructions with what lives in the arena, by offset: ranges that do not overlap, so what a new
// one meets is found beside it.
class ArenaSweep {
 public:
  explicit ArenaSweep(const Schedule& schedule)
      : schedule_(schedule), lives_(lives_of(schedule, true)), place_(schedule.buffers.size(), kNowhere) {
    find_ends();
  }

  void run() {
    for (size_t i = 0; i < schedule_.instructions.size(); ++i) {
      for (uint32_t buffer : starting_[i]) begin(i, buffer);
      check_allocations(i);
      check_scratch(i);
      for (uint32_t buffer : ending_[i]) end(buffer);
    }
  }

 private:
  static constexpr uint64_t kNowhere = UINT64_MAX;
  struct Range {
    uint64_t end;
    uint32_t buffer;
  };
  using Ranges = std::map<uint64_t, Range>;

  const Buffer& buffer(size_t b) const { return schedule_.buffers[b]; }
  size_t buffer_of(OperandId id) const { return schedule_.operands[id.index()].buffer.index(); }

  void find_ends() {
    const size_t count = schedule_.instructions.size();
    starting_.resize(count);
    ending_.resize(count + 1);
    for (uint32_t b = 0; b < lives_.size(); ++b) {
      if (buffer(b).kind != Buffer::Kind::kArena || buffer(b).bytes == 0 || lives_[b].first_write == BufferLife::kNever)
        continue;
      starting_[lives_[b].first_write].push_back(b);
      ending_[lives_[b].held_until].push_back(b);
    }
  }

  std::string name_of_instruction(size_t i) const {
    return str("i{} ({} {})", i, name_of(schedule_.instructions[i].kind), schedule_.instructions[i].op);
  }
  std::string name_of_buffer(uint32_t b) const {
    return str("b{}, which lives from i{} to {}", b, lives_[b].first_write,
               lives_[b].held_until == schedule_.instructions.size() ? "the end" : str("i{}", lives_[b].held_until));
  }

  // The first range in [begin, end) that `matters`.
  template <class F>
  const Range* met(uint64_t begin, uint64_t end, F&& matters) const {
    auto at = live_.upper_bound(begin);
    if (at != live_.begin() && std::prev(at)->second.end > begin) --at;
    for (; at != live_.end() && at->first < end; ++at)
      if (matters(at->second.buffer)) return &at->second;
    return nullptr;
  }

  // Whether the instruction may make `to` where it reads `from` for the last time.
  bool may_take_over(size_t i, uint32_t from, uint32_t to) const {
    using Kind = Instruction::Kind;
    const Instruction& one = schedule_.instructions[i];
    const bool each_in_place = (one.kind == Kind::kCollective && op_def(one.op).collective == Collective::kAllReduce) ||
                               one.kind == Kind::kWait;
    const bool writes_in_place = one.kind == Kind::kGenerated || one.kind == Kind::kNodes ||
                                 one.kind == Kind::kMatmul || one.kind == Kind::kOp || one.kind == Kind::kAten ||
                                 one.kind == Kind::kCopy || each_in_place;
    const auto is_from = [&](OperandId id) { return id.valid() && buffer_of(id) == from; };
    if (!writes_in_place || lives_[from].last_use != i || std::ranges::none_of(one.reads, is_from)) return false;
    if (each_in_place) {  // each operand in its own place
      for (size_t k = 0; k < one.writes.size(); ++k)
        if (is_from(one.reads[k]) != (buffer_of(one.writes[k]) == to)) return false;
      return true;
    }
    if (one.kind != Kind::kGenerated) return true;
    // The kernel says on which of its inputs it may write, and it must be so for all that read there.
    const auto& pairs = schedule_.programs[one.program].in_place;
    for (uint32_t r = 0; r < one.reads.size(); ++r) {
      if (!is_from(one.reads[r])) continue;
      for (uint32_t w = 0; w < one.writes.size(); ++w) {
        const std::pair<uint32_t, uint32_t> pair(r, static_cast<uint32_t>(one.reads.size()) + w);
        if (buffer_of(one.writes[w]) == to && std::ranges::find(pairs, pair) == pairs.end()) return false;
      }
    }
    return true;
  }

  void put(uint64_t begin, uint64_t end, uint32_t b) {
    live_[begin] = {end, b};
    place_[b] = begin;
  }

  void begin(size_t i, uint32_t b) {
    const uint64_t begin = buffer(b).offset;
    const uint64_t end = begin + buffer(b).bytes;
    const uint64_t arena = schedule_.arena_bytes;
    INTERNAL_CHECK(begin <= arena && buffer(b).bytes <= arena - begin, "{}: b{} leaves the arena of {} bytes",
                   name_of_instruction(i), b, arena);
    INTERNAL_CHECK_EQ(begin % kAlignment, 0U, "{}: b{} is not aligned", name_of_instruction(i), b);
    const auto same = live_.find(begin);
    if (same != live_.end() && may_take_over(i, same->second.buffer, b)) {
      const Range from = same->second;
      live_.erase(same);
      place_[from.buffer] = kNowhere;
      if (from.end > end) put(end, from.end, from.buffer);  // is still read
    }
    const Range* other = met(begin, end, [](uint32_t) { return true; });
    INTERNAL_CHECK(other == nullptr, "{}: b{} is written over {}", name_of_instruction(i), b,
                   name_of_buffer(other->buffer));
    put(begin, end, b);
  }

  void end(uint32_t b) {
    if (place_[b] != kNowhere) live_.erase(place_[b]);
  }

  // A result's memory is one of the call's own allocations. Which of those live at the same time, inside the call, is
  // not said here.
  void check_allocations(size_t i) const {
    for (const PlannedAllocation& one : schedule_.instructions[i].allocations) {
      if (one.own || one.bytes == 0) continue;
      const Range* other =
          met(one.offset, one.offset + one.bytes, [&](uint32_t b) { return lives_[b].first_write != i; });
      INTERNAL_CHECK(other == nullptr, "{}: an allocation at {} lies over {}", name_of_instruction(i), one.offset,
                     name_of_buffer(other->buffer));
    }
  }

  void check_scratch(size_t i) const {
    const Instruction& one = schedule_.instructions[i];
    const Scratch workers = {one.worker_scratch.offset,
                             one.worker_scratch.bytes * static_cast<uint64_t>(schedule_.threads - 1)};
    for (const auto& [scratch, name] :
         {std::pair(one.scratch, "scratch"), std::pair(workers, "the workers' scratch")}) {
      if (scratch.bytes == 0) continue;
      const Range* other = met(scratch.offset, scratch.offset + scratch.bytes, [](uint32_t) { return true; });
      INTERNAL_CHECK(other == nullptr, "{}: {} lies over {}", name_of_instruction(i), name,
                     name_of_buffer(other->buffer));
    }
    const bool apart = one.scratch.bytes == 0 || workers.bytes == 0 ||
                       one.scratch.offset + one.scratch.bytes <= workers.offset ||
                       workers.offset + workers.bytes <= one.scratch.offset;
    INTERNAL_CHECK(apart, "{}: scratch and the workers' scratch overlap", name_of_instruction(i));
  }

  const Schedule& schedule_;
  std::vector<BufferLife> lives_;                         // by buffer
  std::vector<std::vector<uint32_t>> starting_, ending_;  // buffers, by instruction
  Ranges live_;
  std::vector<uint64_t> place_;  // in live_, by buffer
};

}  // namespace

void verify_arena(const Schedule& schedule) { ArenaSweep(schedule).run(); }

}  // namespace stepc
