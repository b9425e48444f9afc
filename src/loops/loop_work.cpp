#include "loops/loop_work.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace stepc {

namespace {

constexpr int kLanes = 16;         // of f32 in a vector register: a shorter loop takes as long
constexpr double kScalarRoot = 8;  // a division outside of lanes, in other arithmetic

bool is_wide(ValueType type) { return type == ValueType::kF64 || type == ValueType::kI64; }

class PhaseCounter {
 public:
  PhaseCounter(const LoopProgram& program, const LoopPhase& phase) : program_(program), phase_(phase) {}

  LoopWork count() {
    for (const LoopInstruction& instruction : phase_.instructions) add(instruction);
    return work_;
  }

 private:
  struct Level {
    double times = 1;        // that its body runs
    double lanes_times = 1;  // rounded up to whole vector registers
    bool vector = false;
    uint32_t loop = 0;
  };

  void enter(const LoopInstruction& instruction) {
    const LoopVariable& variable = phase_.variables[instruction.loop];
    Level level = levels_.empty() ? Level{} : levels_.back();
    double turns = static_cast<double>(variable.extent);
    if (variable.kind == LoopVariable::Kind::kItem) turns = static_cast<double>(phase_.items);
    if (variable.kind == LoopVariable::Kind::kChunk) turns = std::max(1.0, turns / static_cast<double>(phase_.items));
    level.times *= turns;
    level.lanes_times *= variable.vector ? std::ceil(turns / kLanes) * kLanes : turns;
    // A loop inside of a vector loop runs for all of its lanes.
    if (variable.vector) {
      level.vector = true;
      level.loop = instruction.loop;
    }
    levels_.push_back(level);
  }

  void add_arithmetic(const Level& level, const LoopInstruction& instruction, double weight) {
    if (level.vector) {
      work_.lane_ops += level.lanes_times * weight * (is_wide(instruction.type) ? 2 : 1);
    } else {
      work_.scalar_ops += level.times * weight;
    }
  }

  void add_access(const Level& level, const LoopInstruction& instruction) {
    const int64_t stride = level.vector ? instruction.index.stride_of(level.loop) : 1;
    const bool is_indirect = instruction.op == LoopOp::kLoad && instruction.indirect != 0 && instruction.args[0] >= 0;
    if (level.vector && (is_indirect || (stride != 0 && stride != 1))) {
      work_.gathers += level.times;
      return;
    }
    // Narrow numbers are taken apart and rounded.
    const bool is_narrow = size_of(program_.buffers[instruction.buffer].dtype) < 4;
    const double weight = !is_narrow ? 1 : instruction.op == LoopOp::kLoad ? 2 : 4;
    if (level.vector && stride == 0) return;
    add_arithmetic(level, instruction, weight);
  }

  void add(const LoopInstruction& instruction) {
    switch (instruction.op) {
      case LoopOp::kLoop:
        return enter(instruction);
      case LoopOp::kEnd:
        levels_.pop_back();
        return;
      case LoopOp::kConstant:
      case LoopOp::kAccumulator:
        return;
      default:
        break;
    }
    if (levels_.empty()) return;
    const Level& level = levels_.back();
    switch (instruction.op) {
      case LoopOp::kLoad:
      case LoopOp::kStore:
        return add_access(level, instruction);
      case LoopOp::kFinish:
        if (level.vector) return add_arithmetic(level, instruction, 1);
        work_.scalar_ops += level.times * kLanes;
        return;
      case LoopOp::kDiv:
      case LoopOp::kSqrt:
      case LoopOp::kQuotient:
        if (level.vector) {
          work_.lane_roots += level.lanes_times * (is_wide(instruction.type) ? 2 : 1);
        } else {
          work_.scalar_ops += level.times * kScalarRoot;
        }
        return;
      default:
        if (instruction.op >= LoopOp::kExp) {
          work_.calls += level.times;
        } else {
          add_arithmetic(level, instruction, 1);
        }
    }
  }

  const LoopProgram& program_;
  const LoopPhase& phase_;
  std::vector<Level> levels_;
  LoopWork work_;
};

}  // namespace

LoopWork work_of(const LoopProgram& program, const LoopPhase& phase) { return PhaseCounter(program, phase).count(); }

}  // namespace stepc
