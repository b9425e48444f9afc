#include "runtime/dry_run.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include <ATen/Functions.h>

#include "aten/cpu_hook.h"
#include "aten/device_hook.h"
#include "aten/virtual_memory.h"
#include "ir/alignment.h"
#include "kernels/tensor_layout.h"
#include "runtime/bind/bound_kernel.h"
#include "schedule/buffer_lives.h"

namespace stepc {

namespace {
constexpr size_t kTrimEvery = 64;  // instructions
}  // namespace

DryRun::DryRun(const Schedule& schedule, const BoundOperands& operands, const std::vector<const BoundKernel*>& kernels,
               ShowWritten show)
    : schedule_(schedule),
      operands_(operands),
      show_(std::move(show)),
      kept_(schedule.buffers.size()),
      begins_(schedule.instructions.size()),
      ends_(schedule.instructions.size()),
      chunked_(schedule.instructions.size()) {
  const auto buffer_of = [&](OperandId id) { return schedule.operands[id.index()].buffer.index(); };
  const std::vector<BufferLife> lives = lives_of(schedule, false);
  // The smallest range that all operands of the buffer lie in, from its origin.
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
    if (lives[b].first_write == BufferLife::kNever) continue;  // what it was given is what it had
    kept_[b].inputs.push_back(i);
    if (kept_[b].inputs.size() > 1) continue;
    const Operand& operand = schedule.operands[input.operand.index()];
    auto* const origin =
        static_cast<std::byte*>(operands.data(input.operand)) - operand.offset * size_of(operand.dtype);
    kept_[b].memory = origin + seen[b].first;
    kept_[b].bytes = static_cast<size_t>(std::max<int64_t>(seen[b].second - seen[b].first, 0));
    if (schedule.buffers[b].space == Space::kHost) continue;
    const at::Tensor& there = operands[input.operand];
    const int64_t begin = (there.storage_offset() - operand.offset) * size_of(operand.dtype) + seen[b].first;
    kept_[b].on_device =
        tensor_on(there.storage(), {static_cast<int64_t>(kept_[b].bytes)}, {1}, begin, c10::ScalarType::Byte);
  }
  for (size_t b = 0; b < kept_.size(); ++b) {
    if (kept_[b].inputs.empty()) continue;
    const size_t first = lives[b].first_write, last = lives[b].last_use;
    size_t write = 0;
    if (first == last && !kept_[b].on_device.defined() && is_chunked(b, first, kernels[first], write)) {
      chunked_[first].push_back({write, kept_[b].inputs.front()});
      continue;
    }
    begins_[first].push_back(b);
    ends_[last].push_back(b);
  }
  find_room();
}

// Finds for each kept buffer the lowest arena offset that no buffer of the schedule, and no kept buffer so far, uses
// meanwhile.
void DryRun::find_room() {
  struct Taken {
    size_t first, last;
    uint64_t begin, end;
  };
  std::vector<Taken> taken;
  const std::vector<BufferLife> lives = lives_of(schedule_, true);  // outputs are read when all has run
  for (size_t b = 0; b < lives.size(); ++b) {
    const Buffer& buffer = schedule_.buffers[b];
    if (buffer.kind == Buffer::Kind::kArena && lives[b].first_use != BufferLife::kNever)
      taken.push_back({lives[b].held_from, lives[b].held_until, buffer.offset, buffer.offset + buffer.bytes});
  }
  for (size_t i = 0; i < schedule_.instructions.size(); ++i) {
    const Instruction& one = schedule_.instructions[i];
    const Scratch& workers = one.worker_scratch;
    const uint64_t worker_bytes = workers.bytes * static_cast<uint64_t>(schedule_.threads);
    if (one.scratch.bytes != 0) taken.push_back({i, i, one.scratch.offset, one.scratch.offset + one.scratch.bytes});
    if (worker_bytes != 0) taken.push_back({i, i, workers.offset, workers.offset + worker_bytes});
    for (const PlannedAllocation& place : one.allocations)
      if (!place.own) taken.push_back({i, i, place.offset, place.offset + place.bytes});
  }
  std::ranges::stable_sort(taken, {}, &Taken::begin);
  for (size_t first = 0; first < begins_.size(); ++first)
    for (size_t b : begins_[first]) {
      Kept& kept = kept_[b];
      if (kept.on_device.defined() == schedule_.device.empty()) continue;  // the arena of a Graph is all the device's
      const size_t last = lives[b].last_use;
      uint64_t at = 0;
      for (const Taken& other : taken) {
        if (other.last < first || last < other.first || other.end <= at) continue;
        if (other.begin >= at + kept.bytes) break;
        at = aligned(other.end);
      }
      if (at + kept.bytes > schedule_.arena_bytes) continue;
      kept.in_arena = at;
      const Taken mine{first, last, at, at + kept.bytes};
      taken.insert(std::ranges::upper_bound(taken, mine.begin, {}, &Taken::begin), mine);
    }
}

// Whether one result of the instruction is everything that is written to the buffer, in the order of its elements.
bool DryRun::is_chunked(size_t buffer, size_t instruction, const BoundKernel* kernel, size_t& write) const {
  if (kernel == nullptr || kernel->chunks() == 1 || kept_[buffer].inputs.size() != 1) return false;
  const Operand& input = schedule_.operands[schedule_.inputs[kept_[buffer].inputs.front()].operand.index()];
  const bool is_wide = is_floating(input.dtype) && size_of(input.dtype) > 1;
  if (!is_wide || !is_contiguous(TensorLayout{{input.dtype, input.sizes}, input.strides})) return false;
  const std::vector<OperandId>& writes = schedule_.instructions[instruction].writes;
  size_t found = 0;
  for (size_t w = 0; w < writes.size(); ++w) {
    const Operand& one = schedule_.operands[writes[w].index()];
    if (one.buffer.index() != buffer) continue;
    ++found;
    write = w;
    const bool is_all = one.dtype == input.dtype && one.offset == input.offset &&
                        element_count(one.sizes) == element_count(input.sizes) &&
                        is_contiguous(TensorLayout{{one.dtype, one.sizes}, one.strides});
    if (!is_all || kernel->made_by(kernel->chunks() - 1, w).end != element_count(input.sizes)) return false;
  }
  return found == 1;
}

DryRun::~DryRun() {
  for (Kept& kept : kept_) put_back(kept);
}

void DryRun::put_back(Kept& kept) {
  if (kept.copy.defined()) kept.on_device.copy_(std::exchange(kept.copy, at::Tensor()));
  if (kept.before == nullptr) return;
  if (kept.bytes != 0) std::memcpy(kept.memory, kept.before, kept.bytes);
  kept.before = nullptr;
  kept.elsewhere.reset();
}

// Only for a single instruction it is known what is free beside it.
void DryRun::keep_of_device(Kept& kept, bool on_host) const {
  const LibraryMemoryScope aside;
  if (on_host) {
    kept.copy = kept.on_device.cpu();
    return;
  }
  if (kept.in_arena == SIZE_MAX) {
    kept.copy = kept.on_device.clone();
    return;
  }
  const auto bytes = static_cast<int64_t>(kept.bytes);
  const c10::Storage in_arena(c10::Storage::use_byte_size_t(), bytes,
                              c10::DataPtr(operands_.arena_at(kept.in_arena), kept.on_device.device()), nullptr, false);
  kept.copy = tensor_on(in_arena, {bytes}, {1}, 0, c10::ScalarType::Byte);
  kept.copy.copy_(kept.on_device);
}

void DryRun::before(size_t first, size_t end) {
  for (size_t instruction = first; instruction < end; ++instruction)
    for (size_t b : begins_[instruction]) keep(kept_[b], /*is_alone=*/end - first == 1);
}

void DryRun::keep(Kept& kept, bool is_alone) const {
  if (kept.on_device.defined()) return keep_of_device(kept, /*on_host=*/!is_alone);
  if (kept.in_arena == SIZE_MAX) kept.elsewhere = std::make_unique_for_overwrite<std::byte[]>(kept.bytes);
  kept.before = kept.in_arena == SIZE_MAX ? kept.elsewhere.get() : operands_.arena_at(kept.in_arena);
  if (kept.bytes != 0) std::memcpy(kept.before, kept.memory, kept.bytes);
}

void DryRun::after(size_t first, size_t end) {
  for (size_t instruction = first; instruction < end; ++instruction) {
    for (size_t b : ends_[instruction]) {
      for (size_t input : kept_[b].inputs) show_(input, operands_[schedule_.inputs[input].operand], 0);
      put_back(kept_[b]);
    }
    // A library's matmuls pack operands into memory that the C library keeps after they free it.
    if (instruction % kTrimEvery == kTrimEvery - 1) release_free_memory();
  }
}

void DryRun::run(size_t instruction, BoundKernel& kernel, RunState& state) {
  if (chunked_[instruction].empty()) return kernel.run(state);
  for (int64_t chunk = 0; chunk < kernel.chunks(); ++chunk) run_chunk(instruction, kernel, state, chunk);
}

void DryRun::run_chunk(size_t instruction, BoundKernel& kernel, RunState& state, int64_t chunk) {
  const std::vector<OperandId>& writes = schedule_.instructions[instruction].writes;
  const auto for_each = [&](const auto& act) {  // (its memory, its bytes before, how many, ...)
    size_t at = 0;
    for (const Chunked& one : chunked_[instruction]) {
      const auto made = kernel.made_by(chunk, one.write);
      const auto element = static_cast<size_t>(size_of(schedule_.operands[writes[one.write].index()].dtype));
      auto* const memory =
          static_cast<std::byte*>(operands_.data(writes[one.write])) + static_cast<size_t>(made.begin) * element;
      const size_t bytes = static_cast<size_t>(made.end - made.begin) * element;
      if (before_chunk_.size() < at + bytes) before_chunk_.resize(at + bytes);
      act(one, made, memory, before_chunk_.data() + at, bytes);
      at += bytes;
    }
  };
  for_each([](const Chunked&, const auto&, const std::byte* memory, std::byte* before, size_t bytes) {
    std::memcpy(before, memory, bytes);
  });
  kernel.run_chunk(state, chunk);
  for_each([&](const Chunked& one, const auto& made, std::byte* memory, const std::byte* before, size_t bytes) {
    const at::Tensor left = operands_[schedule_.inputs[one.input].operand];
    show_(one.input, left.view({-1}).narrow(0, made.begin, made.end - made.begin), made.begin);
    std::memcpy(memory, before, bytes);
  });
}

}  // namespace stepc
