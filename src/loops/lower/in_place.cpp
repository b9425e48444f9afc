#include "loops/lower/in_place.h"

#include <algorithm>

namespace stepc {

namespace {

struct Access {
  const LoopInstruction* instruction;
  const LoopPhase* phase;
  std::vector<size_t> loops;  // that it stands in, by where they begin
};

bool is_chosen_or_guarded(const LoopInstruction& load) { return load.args[0] >= 0 || load.args[1] >= 0; }

// Whether both stand in loops over the same, of which those of `load` may be others that end before.
bool runs_before(const Access& load, const Access& store) {
  const auto variable = [&](size_t loop) { return store.phase->instructions[loop].loop; };
  return load.instruction < store.instruction && std::ranges::equal(load.loops, store.loops, {}, variable, variable);
}

bool moves_together(const std::vector<Access>& loads, const std::vector<Access>& stores, bool earlier_sweeps) {
  if (loads.empty() || stores.empty()) return false;
  const Access& first = stores[0];
  const auto is_there = [&](const Access& one) {
    return one.phase == first.phase && one.instruction->index == first.instruction->index;
  };
  const auto stores_along = [&](const Access& one) { return is_there(one) && one.loops == first.loops; };
  const auto loads_along = [&](const Access& one) {
    return is_there(one) && (one.loops == first.loops || (earlier_sweeps && runs_before(one, first)));
  };
  return std::ranges::all_of(stores, stores_along) && std::ranges::all_of(loads, loads_along) &&
         std::ranges::none_of(loads, [](const Access& load) { return is_chosen_or_guarded(*load.instruction); });
}

}  // namespace

std::vector<std::pair<uint32_t, uint32_t>> in_place_pairs(const LoopProgram& program, bool earlier_sweeps) {
  std::vector<std::vector<Access>> accesses(program.buffers.size());
  for (const LoopPhase& phase : program.phases) {
    std::vector<size_t> open;
    for (size_t i = 0; i < phase.instructions.size(); ++i) {
      const LoopInstruction& one = phase.instructions[i];
      if (one.op == LoopOp::kLoop) open.push_back(i);
      if (one.op == LoopOp::kEnd) open.pop_back();
      if (one.op != LoopOp::kLoad && one.op != LoopOp::kStore) continue;
      accesses[one.buffer].push_back({&one, &phase, open});
    }
  }
  std::vector<std::pair<uint32_t, uint32_t>> out;
  for (uint32_t output = 0; output < program.buffers.size(); ++output) {
    const LoopBuffer& to = program.buffers[output];
    if (to.kind != LoopBuffer::Kind::kOutput || to.count == 0) continue;
    for (uint32_t input = 0; input < program.buffers.size(); ++input) {
      const LoopBuffer& from = program.buffers[input];
      if (from.kind != LoopBuffer::Kind::kInput || from.count != to.count) continue;
      if (size_of(from.dtype) == size_of(to.dtype) && moves_together(accesses[input], accesses[output], earlier_sweeps))
        out.emplace_back(input, output);
    }
  }
  return out;
}

}  // namespace stepc
