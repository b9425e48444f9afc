#include "loops/lower/in_place.h"

#include <algorithm>

namespace stepc {

namespace {

struct Access {
  const LoopInstruction* instruction;
  const LoopPhase* phase;
  size_t loop;  // that it stands in
};

bool is_chosen_or_guarded(const LoopInstruction& load) { return load.args[0] >= 0 || load.args[1] >= 0; }

bool moves_together(const std::vector<Access>& loads, const std::vector<Access>& stores) {
  if (loads.empty() || stores.empty()) return false;
  const Access& first = stores[0];
  const auto goes_along = [&](const Access& one) {
    return one.phase == first.phase && one.loop == first.loop && one.instruction->index == first.instruction->index;
  };
  return std::ranges::all_of(stores, goes_along) && std::ranges::all_of(loads, goes_along) &&
         std::ranges::none_of(loads, [](const Access& load) { return is_chosen_or_guarded(*load.instruction); });
}

}  // namespace

std::vector<std::pair<uint32_t, uint32_t>> in_place_pairs(const LoopProgram& program) {
  std::vector<std::vector<Access>> accesses(program.buffers.size());
  for (const LoopPhase& phase : program.phases) {
    std::vector<size_t> open;
    for (size_t i = 0; i < phase.instructions.size(); ++i) {
      const LoopInstruction& one = phase.instructions[i];
      if (one.op == LoopOp::kLoop) open.push_back(i);
      if (one.op == LoopOp::kEnd) open.pop_back();
      if (one.op != LoopOp::kLoad && one.op != LoopOp::kStore) continue;
      constexpr size_t kNoLoop = static_cast<size_t>(-1);
      accesses[one.buffer].push_back({&one, &phase, open.empty() ? kNoLoop : open.back()});
    }
  }
  std::vector<std::pair<uint32_t, uint32_t>> out;
  for (uint32_t output = 0; output < program.buffers.size(); ++output) {
    const LoopBuffer& to = program.buffers[output];
    if (to.kind != LoopBuffer::Kind::kOutput || to.count == 0) continue;
    for (uint32_t input = 0; input < program.buffers.size(); ++input) {
      const LoopBuffer& from = program.buffers[input];
      if (from.kind != LoopBuffer::Kind::kInput || from.count != to.count) continue;
      if (size_of(from.dtype) == size_of(to.dtype) && moves_together(accesses[input], accesses[output]))
        out.emplace_back(input, output);
    }
  }
  return out;
}

}  // namespace stepc
