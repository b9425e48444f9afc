#include "plan/layer_memory.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/text.h"
#include "ir/alignment.h"
#include "schedule/buffer_lives.h"

namespace stepc {

namespace {

// Layers of one list, as "model.layers": each is held by its number.
using Layer = std::pair<std::string, std::string>;

// The outermost number in the path of a module or a parameter.
std::optional<Layer> layer_of(const std::string& path) {
  size_t begin = 0;
  for (const std::string& name : split(path, '.')) {
    const bool is_number = !name.empty() && std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
    if (is_number) return Layer(path.substr(0, begin), name);
    begin += name.size() + 1;
  }
  return std::nullopt;
}

// What each layer makes and holds for a later pass.
class Moments {
 public:
  explicit Moments(const Schedule& schedule)
      : schedule_(schedule),
        lives_(lives_of(schedule, true)),
        layer_of_(schedule.buffers.size()),
        live_(schedule.instructions.size() + 2, 0) {
    for (size_t i = 0; i < schedule.instructions.size(); ++i) note_makers(i);
    count_live();
    for (uint32_t b = 0; b < schedule.buffers.size(); ++b)
      if (is_held(b)) hold(b);
  }

  [[nodiscard]] double live_at(size_t i) const { return live_[i]; }
  [[nodiscard]] const std::vector<std::optional<Layer>>& layers() const { return layer_of_; }

  // What as many further layers would hold at an instruction. Of each list and pass: as large a part of all that its
  // layers hold as those hold then that are not at work. Updates have no order among layers: what all hold at once.
  [[nodiscard]] double of_others_at(size_t i) const {
    const std::optional<Layer> at_work = layer_of(schedule_.instructions[i].source.module);
    double sum = 0;
    for (const auto& [group, by_layer] : held_) {
      if (group.second == Phase::kUpdate) {
        double least = by_layer.begin()->second.at[i];
        for (const auto& [number, held] : by_layer) least = std::min(least, held.at[i]);
        sum += least * static_cast<double>(by_layer.size());
        continue;
      }
      double now = 0, others = 0, all = 0;
      for (const auto& [number, held] : by_layer) {
        all += held.bytes;
        if (by_layer.size() > 1 && at_work && *at_work == Layer(group.first, number)) continue;
        others += held.bytes;
        now += held.at[i];
      }
      if (others > 0) sum += all * now / others;
    }
    return sum;
  }

 private:
  struct Held {
    double bytes = 0;
    std::vector<double> at;  // by instruction
  };

  [[nodiscard]] size_t count() const { return schedule_.instructions.size(); }
  [[nodiscard]] size_t buffer_of(OperandId id) const { return schedule_.operands[id.index()].buffer.index(); }
  [[nodiscard]] double bytes(size_t b) const { return static_cast<double>(aligned(schedule_.buffers[b].bytes)); }

  // Exchanges that go together are of several layers: each is of the layer of what it sends. Sums of gradients and
  // updates stand outside of modules: they are of the layer whose parameter they are for.
  void note_makers(size_t i) {
    const Instruction& one = schedule_.instructions[i];
    const bool is_bucket = one.kind == Instruction::Kind::kCollective && one.writes.size() > 1;
    std::optional<Layer> layer = layer_of(one.source.module);
    if (one.source.module.empty() && !is_bucket) layer = layer_for(one);
    for (size_t k = 0; k < one.writes.size(); ++k) {
      if (!one.writes[k].valid()) continue;
      const size_t b = buffer_of(one.writes[k]);
      if (lives_[b].first_write != i) continue;
      layer_of_[b] = is_bucket && k < one.reads.size() ? layer_read(one.reads[k]) : layer;
    }
  }
  [[nodiscard]] std::optional<Layer> layer_read(OperandId read) const {
    if (!read.valid()) return std::nullopt;
    const Buffer& buffer = schedule_.buffers[buffer_of(read)];
    return buffer.kind == Buffer::Kind::kInput ? layer_of(schedule_.inputs[buffer.input].key)
                                               : layer_of_[buffer_of(read)];
  }
  [[nodiscard]] std::optional<Layer> layer_for(const Instruction& one) const {
    std::optional<Layer> layer;
    for (size_t k = 0; k < one.reads.size() && !layer && one.source.phase != Phase::kBackward; ++k)
      if (one.reads[k].valid() && is_made_in(buffer_of(one.reads[k]), {Phase::kBackward, Phase::kUpdate}))
        layer = layer_read(one.reads[k]);
    return layer;
  }
  [[nodiscard]] bool is_made_in(size_t b, std::initializer_list<Phase> phases) const {
    return lives_[b].first_write != BufferLife::kNever && std::ranges::find(phases, phase_of(b)) != phases.end();
  }

  // What takes over another's memory lies where that lies, and counts once.
  void count_live() {
    std::vector<std::vector<uint32_t>> starting(count());
    for (uint32_t b = 0; b < lives_.size(); ++b)
      if (is_in_arena(b)) starting[lives_[b].held_from].push_back(b);
    const auto add = [&](size_t from, size_t until, double more) {
      live_[from] += more;
      live_[std::min(until, count()) + 1] -= more;
    };
    std::vector<uint32_t> now;
    for (size_t i = 0; i < count(); ++i) {
      std::erase_if(now, [&](uint32_t b) { return lives_[b].held_until < i; });
      for (uint32_t b : starting[i]) {
        const auto [begin, end] = range_of(b);
        add(i, lives_[b].held_until, bytes(b));
        for (uint32_t other : now) {
          const auto [from, to] = range_of(other);
          if (from >= end || to <= begin) continue;
          add(i, std::min(lives_[b].held_until, lives_[other].held_until),
              -static_cast<double>(std::min(to, end) - std::max(from, begin)));
        }
        now.push_back(b);
      }
      const Instruction& one = schedule_.instructions[i];
      double within = static_cast<double>(one.scratch.bytes) +
                      static_cast<double>(one.worker_scratch.bytes) * static_cast<double>(schedule_.threads - 1);
      for (const PlannedAllocation& allocation : one.allocations)
        if (!allocation.own && !is_result(one, allocation)) within += static_cast<double>(allocation.bytes);
      add(i, i, within);
    }
    for (size_t i = 1; i < live_.size(); ++i) live_[i] += live_[i - 1];
  }
  [[nodiscard]] bool is_result(const Instruction& one, const PlannedAllocation& allocation) const {
    return std::ranges::any_of(one.writes, [&](OperandId write) {
      return write.valid() && is_in_arena(buffer_of(write)) && range_of(buffer_of(write)).first == allocation.offset;
    });
  }
  [[nodiscard]] bool is_in_arena(size_t b) const {
    return schedule_.buffers[b].kind == Buffer::Kind::kArena && lives_[b].first_write != BufferLife::kNever;
  }
  [[nodiscard]] std::pair<uint64_t, uint64_t> range_of(size_t b) const {
    const Buffer& buffer = schedule_.buffers[b];
    return {buffer.offset, buffer.offset + aligned(buffer.bytes)};
  }

  // Made in one pass and read last in another.
  [[nodiscard]] bool is_held(size_t b) const {
    if (!is_in_arena(b) || !layer_of_[b]) return false;
    if (lives_[b].last_use >= count() || phase_of(b) == Phase::kUpdate) return true;
    return schedule_.instructions[lives_[b].last_use].source.phase != phase_of(b);
  }
  [[nodiscard]] Phase phase_of(size_t b) const { return schedule_.instructions[lives_[b].first_write].source.phase; }

  void hold(size_t b) {
    Held& held = held_[{layer_of_[b]->first, phase_of(b)}][layer_of_[b]->second];
    held.at.resize(count(), 0);
    held.bytes += bytes(b);
    for (size_t i = lives_[b].held_from; i < count() && i <= lives_[b].held_until; ++i) held.at[i] += bytes(b);
  }

  const Schedule& schedule_;
  const std::vector<BufferLife> lives_;
  std::vector<std::optional<Layer>> layer_of_;                                 // by buffer: that makes it
  std::vector<double> live_;                                                   // by instruction
  std::map<std::pair<std::string, Phase>, std::map<std::string, Held>> held_;  // by list and maker's phase, by layer
};

}  // namespace

LayerMemory::LayerMemory(const Schedule& schedule) {
  const Moments all(schedule);
  std::vector<Moment> moments;
  for (size_t i = 0; i < schedule.instructions.size(); ++i) moments.push_back({all.live_at(i), all.of_others_at(i)});
  // Only those count beside which no other has more of both.
  std::ranges::sort(moments, [](const Moment& a, const Moment& b) {
    return std::pair(a.live, a.of_others) > std::pair(b.live, b.of_others);
  });
  for (const Moment& one : moments)
    if (moments_.empty() || one.of_others > moments_.back().of_others) moments_.push_back(one);
  unused_ = static_cast<double>(schedule.arena_bytes) - (moments_.empty() ? 0 : moments_.front().live);
  for (size_t b = 0; b < schedule.buffers.size(); ++b) {
    if (schedule.buffers[b].kind != Buffer::Kind::kOwn) continue;
    const auto bytes = static_cast<double>(aligned(schedule.buffers[b].bytes));
    own_ += bytes;
    if (all.layers()[b]) own_of_layers_ += bytes;
  }
}

std::vector<double> LayerMemory::bytes_of_others(const Schedule& schedule) {
  const Moments all(schedule);
  std::vector<double> bytes;
  for (size_t i = 0; i < schedule.instructions.size(); ++i) bytes.push_back(all.of_others_at(i));
  return bytes;
}

double LayerMemory::arena_bytes(double more) const {
  double most = 0;
  for (const Moment& one : moments_) most = std::max(most, one.live + more * one.of_others);
  return most + unused_;
}

double LayerMemory::peak_bytes(double more) const { return arena_bytes(more) + own_ + more * own_of_layers_; }

}  // namespace stepc
