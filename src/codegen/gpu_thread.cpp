#include "codegen/gpu_thread.h"

#include <algorithm>

namespace stepc {

void GpuThread::place(const LoopProgram& program, const LoopPhase& phase, const GpuKernel& kernel, int64_t in_grid,
                      int64_t in_block) {
  constexpr int64_t kTeamsInterleaved = 32;
  block = in_grid;
  number = block * kernel.block + in_block;
  if (kernel.over_grid) {
    lane = number;
    team = 0;
  } else if (kernel.interleaved) {
    lane = in_block / kTeamsInterleaved;
    team = block * kernel.teams_a_block() + in_block % kTeamsInterleaved;
  } else {
    lane = in_block % kernel.lanes;
    team = block * kernel.teams_a_block() + in_block / kernel.lanes;
  }
  is_in_grid = is_live = team < kernel.teams;
  values.assign(phase.instructions.size(), 0);
  variables.assign(phase.variables.size(), 0);
  held.clear();
  for (const GpuHeld& one : kernel.held) {
    const bool in_registers = one.place == GpuHeld::Place::kRegisters;
    const int64_t bytes = in_registers ? one.count * size_of(program.buffers[one.buffer].dtype) : 0;
    held.emplace_back(static_cast<size_t>(bytes));
  }
  set(phase, 0, std::min(team, kernel.teams - 1));
}

void GpuThread::set(const LoopPhase& phase, uint32_t variable, int64_t value) {
  variables[variable] = value;
  for (size_t k = 0; k < phase.variables.size(); ++k) {
    const LoopVariable& digit = phase.variables[k];
    if (digit.kind == LoopVariable::Kind::kDigit && digit.source == variable)
      variables[k] = value / digit.divisor % digit.extent;
  }
}

bool GpuThread::set_all(const LoopPhase& phase, const GpuStep& step, int64_t turn) {
  for (size_t l = step.loops.size(); l-- > 0;) {
    const LoopVariable& variable = phase.variables[step.loops[l]];
    if (variable.kind == LoopVariable::Kind::kChunk) {
      turn += variables[0] * variable.block;
      if (turn >= variable.extent) return false;
      set(phase, step.loops[l], turn);
      return true;
    }
    const int64_t turns = variable.kind == LoopVariable::Kind::kItem ? phase.items : variable.extent;
    set(phase, step.loops[l], turn % turns);
    turn /= turns;
  }
  return true;
}

int64_t GpuThread::value_of(const Affine& form) const {
  int64_t value = form.offset;
  for (const AffineTerm& term : form.terms) value += variables[term.loop] * term.stride;
  return value;
}

}  // namespace stepc
