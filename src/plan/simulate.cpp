#include "plan/simulate.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "ir/alignment.h"
#include "plan/stream_times.h"
#include "schedule/buffer_lives.h"

namespace stepc {

namespace {

// How much traffic has gone by since each piece of memory was last touched.
class ReuseDistances {
 public:
  explicit ReuseDistances(const Schedule& schedule)
      : schedule_(schedule),
        block_bytes_(std::max<uint64_t>(kSmallestBlock, schedule.arena_bytes / kMostBlocks + 1)),
        blocks_(schedule.arena_bytes / block_bytes_ + 1, kNever),
        buffers_(schedule.buffers.size(), kNever) {}

  // Calls visit(distance, share of the operand's bytes) for its pieces, which are touched then, from first to last: the
  // operand's own bytes go by too before an element is met again.
  template <class Visit>
  void touch(const Operand& operand, double bytes, const Visit& visit) {
    const Buffer& buffer = schedule_.buffers[operand.buffer.index()];
    if (buffer.kind != Buffer::Kind::kArena) {
      visit(now_ - buffers_[operand.buffer.index()] + bytes, 1.0);
      now_ += bytes;
      buffers_[operand.buffer.index()] = now_;
      return;
    }
    const auto width = static_cast<uint64_t>(size_of(operand.dtype));
    const uint64_t begin = buffer.offset + static_cast<uint64_t>(std::max<int64_t>(operand.offset, 0)) * width;
    const uint64_t end = buffer.offset + std::min(buffer.bytes, static_cast<uint64_t>(extent_of(operand)) * width);
    const size_t first = std::min(begin / block_bytes_, blocks_.size() - 1);
    const size_t last = std::clamp((std::max(end, begin + 1) - 1) / block_bytes_, first, blocks_.size() - 1);
    const double share = 1.0 / static_cast<double>(last - first + 1);
    for (size_t block = first; block <= last; ++block) visit(now_ - blocks_[block] + bytes, share);
    now_ += bytes;
    for (size_t block = first; block <= last; ++block) blocks_[block] = now_;
  }

 private:
  static constexpr uint64_t kSmallestBlock = 4096;
  static constexpr uint64_t kMostBlocks = 1024;
  static constexpr double kNever = -1e18;

  const Schedule& schedule_;
  double now_ = 0;  // bytes of traffic so far
  uint64_t block_bytes_;
  std::vector<double> blocks_, buffers_;  // when last touched
};

// Of what an instruction reads and writes, from where it lies.
double traffic_seconds(const Schedule& schedule, const Instruction& instruction, const Rates& rates,
                       ReuseDistances& distances) {
  struct Piece {
    double bytes, rate;
  };
  std::vector<Piece> pieces;
  double sum = 0;
  for (const auto* operands : {&instruction.reads, &instruction.writes})
    for (OperandId id : *operands) {
      if (!id.valid()) continue;
      const Operand& operand = schedule.operands[id.index()];
      const double bytes = bytes_shown(operand);
      sum += bytes;
      distances.touch(operand, bytes, [&](double distance, double share) {
        pieces.push_back({bytes * share, stream_rate(rates, distance)});
      });
    }
  // Of an operand that is only looked into, the Schedule says how much is read.
  double moved = instruction.work.bytes > 0 ? instruction.work.bytes / std::max(sum, 1.0) : 1;
  const bool is_said = instruction.aten && instruction.aten->rule;  // by the program: it may be read more than once
  if (!is_said) moved = std::min(1.0, moved);
  double seconds = 0;
  for (const Piece& piece : pieces) seconds += piece.bytes * moved / piece.rate;
  return seconds;
}

std::vector<uint64_t> live_bytes_of(const Schedule& schedule) {
  const size_t count = schedule.instructions.size();
  const std::vector<BufferLife> lives = lives_of(schedule, true);
  std::vector<int64_t> change(count + 1, 0);
  for (size_t b = 0; b < schedule.buffers.size(); ++b) {
    const Buffer& buffer = schedule.buffers[b];
    if (lives[b].held_from >= count || (buffer.kind != Buffer::Kind::kArena && buffer.kind != Buffer::Kind::kOwn))
      continue;
    const auto bytes = static_cast<int64_t>(aligned(buffer.bytes));
    change[lives[b].held_from] += bytes;
    change[std::min(lives[b].held_until, count - 1) + 1] -= bytes;
  }
  std::vector<uint64_t> live(count, 0);
  int64_t now = 0;
  for (size_t i = 0; i < count; ++i) {
    now += change[i];
    const Instruction& instruction = schedule.instructions[i];
    live[i] =
        static_cast<uint64_t>(now) + aligned(instruction.scratch.bytes) + aligned(instruction.worker_scratch.bytes);
  }
  return live;
}

nlohmann::ordered_json event_of(const Schedule& schedule, const TimelineEntry& entry, size_t index) {
  constexpr double kMicro = 1e6;
  const Instruction& instruction = schedule.instructions[index];
  nlohmann::ordered_json event = {{"name", instruction.op},
                                  {"cat", name_of(entry.work)},
                                  {"ph", "X"},
                                  {"ts", entry.begin_seconds * kMicro},
                                  {"dur", entry.seconds() * kMicro},
                                  {"pid", 1},
                                  {"tid", entry.stream + 1},
                                  {"args",
                                   {{"instruction", index},
                                    {"class", name_of(entry.work)},
                                    {"module", instruction.source.module},
                                    {"flops", instruction.work.all_flops()},
                                    {"bytes", instruction.work.bytes}}}};
  if (const std::optional<Communication> sent = communication_of(schedule, instruction)) {
    event["args"]["axes"] = to_text(sent->axes, schedule.mesh);
    event["args"]["sent_bytes"] = sent->bytes;
  }
  return event;
}

bool is_exchange(const Instruction& instruction) { return instruction.kind == Instruction::Kind::kCollective; }

std::string_view device_of(bool is_gpu) { return is_gpu ? "a GPU" : "a CPU"; }

}  // namespace

Timeline simulate(const Schedule& schedule, const Target& target) {
  USER_CHECK((schedule.features.sm > 0) == target.gpu.has_value(),
             "the Schedule is planned for {} and cannot be priced for {}; give a target of its kind",
             device_of(schedule.features.sm > 0), device_of(target.gpu.has_value()));
  const Pricer pricer(schedule, target);
  ReuseDistances distances(schedule);
  for (const Instruction& instruction : schedule.instructions)  // the step before
    traffic_seconds(schedule, instruction, target.rates, distances);
  const std::vector<uint64_t> live = live_bytes_of(schedule);
  Timeline timeline;
  timeline.bind_seconds = timeline.seconds = pricer.bind_seconds();
  std::vector<StreamTask> tasks;
  std::map<uint32_t, size_t> marks;  // the instruction that reaches each
  std::optional<size_t> last_of_main;
  for (size_t i = 0; i < schedule.instructions.size(); ++i) {
    const Instruction& instruction = schedule.instructions[i];
    const Price price = pricer.price(instruction);
    const double traffic = traffic_seconds(schedule, instruction, target.rates, distances);
    const bool is_wait = instruction.kind == Instruction::Kind::kWait;
    StreamTask& task = tasks.emplace_back(StreamTask{.stream = instruction.stream});
    task.seconds = is_wait ? price.call_seconds : pricer.seconds_of(price, traffic);
    if (is_wait) {
      task.after = marks.at(*instruction.mark);
    } else if (instruction.mark) {
      marks[*instruction.mark] = i;
      if (is_exchange(instruction)) task.after = last_of_main;
    }
    if (is_exchange(instruction) && task.seconds > 0) {
      task.link = price.link;
      task.link_share = price.compute_seconds / task.seconds;
    }
    if (instruction.stream == 0) last_of_main = i;
    timeline.entries.push_back({price.work, instruction.stream, 0, 0, live[i]});
  }
  const std::vector<StreamTime> times = stream_times(tasks, timeline.bind_seconds);
  std::map<uint32_t, double> ends;  // by stream
  for (size_t i = 0; i < times.size(); ++i) {
    const Instruction& instruction = schedule.instructions[i];
    const bool is_wait = instruction.kind == Instruction::Kind::kWait;
    double& end = ends.try_emplace(instruction.stream, timeline.bind_seconds).first->second;
    TimelineEntry& entry = timeline.entries[i];
    entry.begin_seconds = is_wait ? end : times[i].begin_seconds;
    end = entry.end_seconds = times[i].end_seconds;
    if (is_exchange(instruction)) timeline.exchange_seconds += entry.seconds();
    if (instruction.stream == 0 && (is_exchange(instruction) || ends_exchange(instruction)))
      timeline.exposed_seconds += entry.seconds();
    timeline.seconds = std::max(timeline.seconds, end);
    timeline.peak_bytes = std::max(timeline.peak_bytes, live[i]);
  }
  return timeline;
}

std::vector<Communication> communication_of(const Schedule& schedule, const Timeline& timeline) {
  std::vector<Communication> all;
  for (size_t i = 0; i < schedule.instructions.size(); ++i) {
    std::optional<Communication> one = communication_of(schedule, schedule.instructions[i]);
    if (!one) continue;
    one->seconds = timeline.entries[i].seconds();
    all.push_back(std::move(*one));
  }
  return summed(all);
}

std::string to_text(const Timeline& timeline) {
  struct Row {
    size_t count = 0;
    double seconds = 0;
  };
  std::array<Row, kWorkClasses> rows;
  for (const TimelineEntry& entry : timeline.entries) {
    Row& row = rows[static_cast<size_t>(entry.work)];
    ++row.count;
    row.seconds += entry.seconds();
  }
  std::string out = str("predicted {:.3f} ms in {} instructions, at most {} live\n", timeline.seconds * 1e3,
                        timeline.entries.size(), human_bytes(timeline.peak_bytes));
  for (size_t w = 0; w < kWorkClasses; ++w)
    if (rows[w].count != 0)
      out += str("  {:<22}{:>7}{:>12.3f} ms{:>7.1f} %\n", name_of(static_cast<WorkClass>(w)), rows[w].count,
                 rows[w].seconds * 1e3, timeline.seconds > 0 ? 100 * rows[w].seconds / timeline.seconds : 0);
  if (timeline.exchange_seconds > 0)
    out += str("  the ranks exchange for {:.3f} ms, {:.3f} ms of them beside nothing else\n",
               timeline.exchange_seconds * 1e3, timeline.exposed_seconds * 1e3);
  out += str("  {:<22}{:>7}{:>12.3f} ms{:>7.1f} %\n", "binding its tensors", "", timeline.bind_seconds * 1e3,
             timeline.seconds > 0 ? 100 * timeline.bind_seconds / timeline.seconds : 0);
  return out;
}

std::string to_trace_events(const Schedule& schedule, const Timeline& timeline) {
  using nlohmann::ordered_json;
  constexpr double kMicro = 1e6;
  ordered_json events = ordered_json::array();
  events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", 1}, {"args", {{"name", "predicted step"}}}});
  for (size_t i = 0; i < timeline.entries.size(); ++i) {
    const TimelineEntry& entry = timeline.entries[i];
    if (entry.work != WorkClass::kHost) events.push_back(event_of(schedule, entry, i));
    events.push_back({{"name", "live bytes"},
                      {"ph", "C"},
                      {"ts", entry.begin_seconds * kMicro},
                      {"pid", 1},
                      {"args", {{"bytes", entry.live_bytes}}}});
  }
  const ordered_json whole = {{"displayTimeUnit", "ms"},
                              {"otherData", {{"predicted_us", timeline.seconds * kMicro}}},
                              {"traceEvents", std::move(events)}};
  return whole.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace stepc
