#include "codegen/lane_groups.h"

#include <algorithm>

namespace stepc {

LaneGroups::LaneGroups(const LoopProgram& program, const LoopPhase& phase)
    : program_(program), phase_(phase), code_(phase.instructions) {}

bool LaneGroups::is_digit_of(uint32_t loop, uint32_t variable) const {
  const LoopVariable& one = phase_.variables[loop];
  return one.kind == LoopVariable::Kind::kDigit && one.source == variable;
}
bool LaneGroups::moves_with(const Affine& index, uint32_t variable) const {
  return std::ranges::any_of(
      index.terms, [&](const AffineTerm& term) { return term.loop == variable || is_digit_of(term.loop, variable); });
}
// Whether each group of `width` turns of the variable is as many elements in a row, from a multiple of `width` on.
bool LaneGroups::is_aligned(const Affine& index, uint32_t variable, int64_t width) const {
  return index.offset % width == 0 && std::ranges::all_of(index.terms, [&](const AffineTerm& term) {
           if (term.loop == variable) return term.stride == 1;
           return !is_digit_of(term.loop, variable) && term.stride % width == 0;
         });
}
bool LaneGroups::is_row_access(const LoopInstruction& one, uint32_t variable) const {
  return is_access(one.op) && one.index.stride_of(variable) == 1 &&
         program_.buffers[one.buffer].kind != LoopBuffer::Kind::kLocal;
}

int64_t LaneGroups::widest(std::span<const GpuStep> steps) const {
  constexpr int64_t kMostBytes = 16;
  int64_t most_bytes = 0;  // of an element that moves along the lanes
  for (const GpuStep& step : steps)
    for (uint32_t i = step.first; i < step.last; ++i)
      if (is_row_access(code_[i], step.loops.back()))
        most_bytes = std::max(most_bytes, size_of(program_.buffers[code_[i].buffer].dtype));
  if (most_bytes == 0) return 1;
  int64_t width = kMostBytes / most_bytes;
  while (width > 1 && !std::ranges::all_of(steps, [&](const GpuStep& step) { return takes(step, width); })) width /= 2;
  return width;
}

bool LaneGroups::takes(const GpuStep& step, int64_t width) const {
  const uint32_t innermost = step.loops.back();
  const LoopVariable& variable = phase_.variables[innermost];
  const bool is_item = variable.kind == LoopVariable::Kind::kItem;
  if ((is_item ? phase_.items : variable.extent) % width != 0) return false;
  if (variable.kind == LoopVariable::Kind::kChunk && variable.block % width != 0) return false;
  size_t loops = 0;
  for (uint32_t i = step.first; i < step.last; ++i) loops += code_[i].op == LoopOp::kLoop ? 1 : 0;
  if (loops != step.loops.size()) return false;
  const std::vector<GpuMode> modes = modes_of(step, width);
  for (uint32_t i = step.first; i < step.last; ++i)
    if (is_row_access(code_[i], innermost) && modes[i] != GpuMode::kWide) return false;
  return true;
}

// Whether the bound has all elements of a group on one side.
bool LaneGroups::is_whole_comparison(const LoopInstruction& one, int32_t index, int64_t width) const {
  const size_t place = one.op == LoopOp::kLt ? 0 : 1;
  if ((one.op != LoopOp::kLt && one.op != LoopOp::kLe) || one.args[place] != index) return false;
  const LoopInstruction& bound = code_[static_cast<size_t>(one.args[1 - place])];
  return bound.op == LoopOp::kConstant && bound.integer % width == 0;
}
// An index that serves only such comparisons: the first element's says as much.
bool LaneGroups::is_for_comparisons(uint32_t index, uint32_t innermost, int64_t width) const {
  if (code_[index].op != LoopOp::kIndex || !is_aligned(code_[index].index, innermost, width)) return false;
  const auto number = static_cast<int32_t>(index);
  return std::ranges::all_of(code_, [&](const LoopInstruction& one) {
    const bool uses = std::ranges::find(one.args, number) != one.args.end();
    return !uses || is_whole_comparison(one, number, width);
  });
}

std::vector<GpuMode> LaneGroups::modes_of(const GpuStep& step, int64_t width) const {
  std::vector<GpuMode> modes(code_.size(), GpuMode::kEach);
  if (width == 1) return modes;
  const uint32_t innermost = step.loops.back();
  const auto is_once = [&](int32_t arg) {
    const auto at = static_cast<size_t>(arg);
    return arg < 0 || at < step.first || at >= step.last || modes[at] == GpuMode::kOnce;
  };
  for (uint32_t i = step.first; i < step.last; ++i) {
    const LoopInstruction& one = code_[i];
    if (one.op == LoopOp::kLoop || one.op == LoopOp::kEnd || one.op == LoopOp::kAccumulator ||
        one.op == LoopOp::kFinish || is_accumulation(one.op))
      continue;
    const bool moves = moves_with(one.index, innermost);
    if (one.op == LoopOp::kStore) {
      if (moves && is_aligned(one.index, innermost, width)) modes[i] = GpuMode::kWide;
      continue;
    }
    if (!is_once(one.args[0]) || !is_once(one.args[1]) || !is_once(one.args[2])) continue;
    if (!moves || is_for_comparisons(i, innermost, width)) {
      modes[i] = GpuMode::kOnce;
    } else if (one.op == LoopOp::kLoad && is_aligned(one.index, innermost, width) &&
               (one.args[0] < 0 || one.indirect % width == 0)) {
      modes[i] = GpuMode::kWide;
    }
  }
  return modes;
}

}  // namespace stepc
