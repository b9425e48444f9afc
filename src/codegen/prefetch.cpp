#include "codegen/prefetch.h"

#include <algorithm>

namespace stepc {

namespace {

// How far a form moves when `loop` moves on by one.
int64_t step_of(const LoopPhase& phase, const Affine& form, uint32_t loop) {
  int64_t step = form.stride_of(loop);
  for (uint32_t k = 0; k < phase.variables.size() && step == 0; ++k) {
    const LoopVariable& digit = phase.variables[k];
    if (digit.kind == LoopVariable::Kind::kDigit && digit.source == loop && digit.divisor == 1)
      step = form.stride_of(k);
  }
  return step;
}

}  // namespace

std::vector<Prefetch> prefetches_of(const LoopProgram& program, const LoopPhase& phase, std::optional<size_t> row,
                                    size_t sweep) {
  constexpr int64_t kLongestRow = 1 << 15;    // elements: the next row is to stay in the cache till it is used
  constexpr int64_t kAhead = 1024;            // elements, in a long sweep
  constexpr int64_t kStaysInCache = 1 << 18;  // bytes of a buffer
  const uint32_t inner = phase.instructions[sweep].loop;
  const LoopVariable& variable = phase.variables[inner];
  const bool by_row = row && variable.kind == LoopVariable::Kind::kCount && variable.extent <= kLongestRow;
  std::vector<Prefetch> out;
  const size_t begin = by_row ? *row : sweep;
  std::vector<uint32_t> open = {phase.instructions[begin].loop};
  for (size_t i = begin + 1; !open.empty(); ++i) {
    const LoopInstruction& one = phase.instructions[i];
    if (by_row && one.op == LoopOp::kLoop && i > sweep) return {};
    if (one.op == LoopOp::kLoop) open.push_back(one.loop);
    if (one.op == LoopOp::kEnd) open.pop_back();
    const bool is_access = one.op == LoopOp::kStore || (one.op == LoopOp::kLoad && one.args[0] < 0);
    if (!is_access || open.back() != inner || one.index.stride_of(inner) != 1) continue;
    const LoopBuffer& buffer = program.buffers[one.buffer];
    const bool is_outside = buffer.kind == LoopBuffer::Kind::kInput || buffer.kind == LoopBuffer::Kind::kOutput;
    const int64_t step = by_row ? step_of(phase, one.index, phase.instructions[*row].loop) : kAhead;
    if (!is_outside || step == 0 || buffer.count * size_of(buffer.dtype) <= kStaysInCache) continue;
    const auto same_row = [&](const Prefetch& other) {
      const LoopInstruction& access = phase.instructions[other.access];
      return access.buffer == one.buffer && access.index.terms == one.index.terms;
    };
    if (std::ranges::none_of(out, same_row)) out.push_back({i, step});
  }
  return out;
}

}  // namespace stepc
