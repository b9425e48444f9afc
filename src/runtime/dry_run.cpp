#include "runtime/dry_run.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace stepc {

namespace {
constexpr size_t kNever = SIZE_MAX;
struct Life {
  size_t first_write = kNever, last_use = 0;
};
}  // namespace

DryRun::DryRun(const Schedule& schedule, const BoundOperands& operands, ShowWritten show)
    : schedule_(schedule),
      operands_(operands),
      show_(std::move(show)),
      kept_(schedule.buffers.size()),
      begins_(schedule.instructions.size()),
      ends_(schedule.instructions.size()) {
  const auto buffer_of = [&](OperandId id) { return schedule.operands[id.index()].buffer.index(); };
  std::vector<Life> lives(schedule.buffers.size());
  for (size_t i = 0; i < schedule.instructions.size(); ++i) {
    for (OperandId id : schedule.instructions[i].reads)
      if (id.valid()) lives[buffer_of(id)].last_use = i;
    for (OperandId id : schedule.instructions[i].writes) {
      if (!id.valid()) continue;
      Life& life = lives[buffer_of(id)];
      life.last_use = i;
      if (life.first_write == kNever) life.first_write = i;
    }
  }
  // The smallest stretch that all operands of the buffer lie in, from its origin.
  std::vector<std::pair<int64_t, int64_t>> seen(schedule.buffers.size(), {std::numeric_limits<int64_t>::max(), 0});
  for (const Operand& operand : schedule.operands) {
    auto& [begin, end] = seen[operand.buffer.index()];
    begin = std::min(begin, operand.offset * size_of(operand.dtype));
    end = std::max(end, extent_of(operand) * size_of(operand.dtype));
  }
  for (size_t i = 0; i < schedule.inputs.size(); ++i) {
    const ScheduleInput& input = schedule.inputs[i];
    if (!input.written || !is_of_program(input.kind)) continue;
    const size_t b = buffer_of(input.operand);
    if (lives[b].first_write == kNever) continue;  // what it was given is what it had
    kept_[b].inputs.push_back(i);
    if (kept_[b].inputs.size() > 1) continue;
    begins_[lives[b].first_write].push_back(b);
    ends_[lives[b].last_use].push_back(b);
    const Operand& operand = schedule.operands[input.operand.index()];
    auto* const origin =
        static_cast<std::byte*>(operands.data(input.operand)) - operand.offset * size_of(operand.dtype);
    kept_[b].memory = origin + seen[b].first;
    kept_[b].bytes = static_cast<size_t>(std::max<int64_t>(seen[b].second - seen[b].first, 0));
  }
}

DryRun::~DryRun() {
  for (Kept& kept : kept_) put_back(kept);
}

void DryRun::put_back(Kept& kept) {
  if (kept.before == nullptr) return;
  if (kept.bytes != 0) std::memcpy(kept.memory, kept.before.get(), kept.bytes);
  kept.before.reset();
}

void DryRun::before(size_t instruction) {
  for (size_t b : begins_[instruction]) {
    Kept& kept = kept_[b];
    kept.before = std::make_unique_for_overwrite<std::byte[]>(kept.bytes);
    if (kept.bytes != 0) std::memcpy(kept.before.get(), kept.memory, kept.bytes);
  }
}

void DryRun::after(size_t instruction) {
  for (size_t b : ends_[instruction]) {
    for (size_t input : kept_[b].inputs) show_(input, operands_[schedule_.inputs[input].operand]);
    put_back(kept_[b]);
  }
}

}  // namespace stepc
