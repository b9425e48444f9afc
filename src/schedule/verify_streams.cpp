#include "schedule/verify_streams.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "schedule/buffers.h"
#include "schedule/stream_clocks.h"

namespace stepc {

namespace {

using Kind = Instruction::Kind;

struct Use {
  uint32_t stream = 0;
  size_t instruction = 0;
};

// Who has last touched each range of one piece of memory.
class Touched {
 public:
  // Calls visit(use) for all that a use of [begin, end) must come after, and notes it.
  template <class Visit>
  void use(uint64_t begin, uint64_t end, const Use& now, bool writes, const Visit& visit) {
    if (begin >= end) return;
    split(begin);
    split(end);
    for (auto at = ranges_.lower_bound(begin); at != ranges_.end() && at->first < end; ++at) {
      Range& range = at->second;
      for (const Use& write : range.writes) visit(write);
      if (writes)
        for (const Use& read : range.reads) visit(read);
    }
    for (uint64_t from = begin; from < end;) {  // what nobody has touched yet becomes a range of its own
      auto at = ranges_.lower_bound(from);
      const uint64_t to = at == ranges_.end() ? end : std::min(end, at->first);
      if (from < to) at = ranges_.emplace(from, Range{to, {}, {}}).first;
      note(at->second, now, writes);
      from = at->second.end;
    }
  }

 private:
  struct Range {
    uint64_t end;
    std::vector<Use> writes;  // the last one
    std::vector<Use> reads;   // since then, the last of each stream
  };
  static void note(Range& range, const Use& now, bool writes) {
    if (writes) {
      range.writes = {now};
      range.reads.clear();
      return;
    }
    const auto same = std::ranges::find(range.reads, now.stream, &Use::stream);
    if (same == range.reads.end())
      range.reads.push_back(now);
    else
      *same = now;
  }
  void split(uint64_t place) {
    auto at = ranges_.upper_bound(place);
    if (at == ranges_.begin()) return;
    --at;
    if (at->first >= place || at->second.end <= place) return;
    Range behind = at->second;
    at->second.end = place;
    ranges_.emplace(place, std::move(behind));
  }

  std::map<uint64_t, Range> ranges_;  // by begin
};

class StreamVerifier {
 public:
  explicit StreamVerifier(const Schedule& schedule) : schedule_(schedule) {}

  void run() {
    const auto is_plain = [](const Instruction& one) { return one.stream == 0 && !one.mark; };
    if (std::ranges::all_of(schedule_.instructions, is_plain)) return;
    for (at_ = 0; at_ < schedule_.instructions.size(); ++at_) {
      const Instruction& one = schedule_.instructions[at_];
      begin(one);
      touch(one);
      end(one);
    }
    const std::optional<size_t> going = goes_on();
    INTERNAL_CHECK(!going, "the step ends before what i{} has begun", *going);
  }

 private:
  [[nodiscard]] std::string here() const {
    const Instruction& one = schedule_.instructions[at_];
    return str("i{} ({} {})", at_, name_of(one.kind), one.op);
  }

  // An instruction that stream 0 does not know to have ended.
  std::optional<size_t> goes_on() {
    const StreamClock& main = clocks_.of(0);
    for (const auto& [stream, last] : last_)
      if (main[stream] <= last) return last;
    return std::nullopt;
  }

  void begin(const Instruction& one) {
    const bool is_host = one.kind == Kind::kGuard || one.kind == Kind::kEvent || one.kind == Kind::kPause;
    if (is_host) {
      INTERNAL_CHECK_EQ(one.stream, 0U, "the stream of {}", here());
      const std::optional<size_t> going = goes_on();
      INTERNAL_CHECK(!going, "{} stands before the wait for i{}", here(), *going);
    }
    const bool is_of_streams = one.kind == Kind::kWait || one.kind == Kind::kRecord;
    if (is_of_streams)
      INTERNAL_CHECK(one.mark.has_value(), "{} has no mark", here());
    else
      INTERNAL_CHECK(!one.mark || one.kind == Kind::kCollective, "{} has a mark", here());
    if (one.kind == Kind::kCollective && one.mark)
      INTERNAL_CHECK(one.stream != 0, "{} has a mark on the stream that waits for it", here());
    if (one.kind == Kind::kWait)
      INTERNAL_CHECK(clocks_.is_reached(*one.mark), "{} waits for mark {}, which nothing before it reaches", here(),
                     *one.mark);
    clock_ = &clocks_.begin(one);
    const auto begun = one.kind == Kind::kWait ? exchanges_.find(*one.mark) : exchanges_.end();
    if (begun != exchanges_.end()) {
      check_ends(one, schedule_.instructions[begun->second]);
      exchanges_.erase(begun);
    } else if (is_of_streams) {
      INTERNAL_CHECK(one.reads.empty() && one.writes.empty(), "{} ends no exchange and has operands", here());
    }
  }
  // The wait has the memory of what it ends: results, then operands.
  void check_ends(const Instruction& wait, const Instruction& begun) const {
    std::vector<OperandId> wanted = begun.writes;
    wanted.insert(wanted.end(), begun.reads.begin(), begun.reads.end());
    INTERNAL_CHECK(wait.reads == wanted, "{} does not read what i{} writes and reads", here(),
                   exchanges_.at(*wait.mark));
    INTERNAL_CHECK_EQ(wait.writes.size(), begun.writes.size(), "what {} gives", here());
    for (size_t k = 0; k < wait.writes.size(); ++k)
      INTERNAL_CHECK(begin_at_one_place(schedule_, wait.reads[k], wait.writes[k]), "{} moves %{}", here(),
                     wait.reads[k]);
  }

  void end(const Instruction& one) {
    INTERNAL_CHECK(clocks_.end(one, at_), "{} reaches mark {} once more", here(), one.mark.value_or(0));
    if (one.kind == Kind::kCollective && one.mark) exchanges_.emplace(*one.mark, at_);
    if (one.stream != 0 && one.kind != Kind::kWait && one.kind != Kind::kRecord) last_[one.stream] = at_;
  }

  void touch(const Instruction& one) {
    for (OperandId read : one.reads) touch(read, false);
    for (OperandId write : one.writes) touch(write, true);
    for (const Scratch& scratch : {one.scratch, workers_of(one)})
      touch(arena_, scratch.offset, scratch.offset + scratch.bytes, true);
    for (const PlannedAllocation& one_of : one.allocations)
      if (!one_of.own) touch(arena_, one_of.offset, one_of.offset + one_of.bytes, true);
  }
  [[nodiscard]] Scratch workers_of(const Instruction& one) const {
    return {one.worker_scratch.offset, one.worker_scratch.bytes * static_cast<uint64_t>(schedule_.threads - 1)};
  }
  void touch(OperandId id, bool writes) {
    if (!id.valid()) return;
    const Operand& operand = schedule_.operands[id.index()];
    const Buffer& buffer = schedule_.buffers[operand.buffer.index()];
    const bool is_in_arena = buffer.kind == Buffer::Kind::kArena;
    const auto width = static_cast<uint64_t>(size_of(operand.dtype));
    const uint64_t base = is_in_arena ? buffer.offset : 0;
    touch(is_in_arena ? arena_ : others_[operand.buffer], base + static_cast<uint64_t>(operand.offset) * width,
          base + static_cast<uint64_t>(extent_of(operand)) * width, writes);
  }
  void touch(Touched& memory, uint64_t begin, uint64_t end, bool writes) {
    const Instruction& one = schedule_.instructions[at_];
    memory.use(begin, end, {one.stream, at_}, writes, [&](const Use& before) {
      if (before.instruction == at_) return;
      INTERNAL_CHECK(before.stream == one.stream || (*clock_)[before.stream] > before.instruction,
                     "{} uses memory that i{} uses on stream {}, and no wait stands between them", here(),
                     before.instruction, before.stream);
    });
  }

  const Schedule& schedule_;
  size_t at_ = 0;
  StreamClocks clocks_;
  const StreamClock* clock_ = nullptr;    // of the instruction's stream, when the instruction begins
  std::map<uint32_t, size_t> exchanges_;  // that no wait has ended, by mark
  std::map<uint32_t, size_t> last_;       // by stream beside stream 0: its last instruction that uses memory
  Touched arena_;
  std::map<BufferId, Touched> others_;
};

}  // namespace

void verify_streams(const Schedule& schedule) { StreamVerifier(schedule).run(); }

}  // namespace stepc
