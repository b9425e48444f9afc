#include "engine/plan/plan_profile.h"

#include "plan/simulate.h"

namespace stepc {

namespace {

std::string_view kernel_of(const Instruction& instruction) {
  switch (instruction.kind) {
    case Instruction::Kind::kGenerated:
      return "generated";
    case Instruction::Kind::kMatmul:
    case Instruction::Kind::kAttention:
    case Instruction::Kind::kLoss:
      return "blocked";
    case Instruction::Kind::kCollective:
      return "ranks";
    default:
      return instruction.aten && instruction.aten->rule ? "own" : "ATen";
  }
}

}  // namespace

Profile profile_of(const Schedule& schedule, Mode mode, const RunTimes& times, const KnownTarget& known) {
  const Timeline predicted = simulate(schedule, known.target);
  Profile profile;
  profile.target = known.target;
  profile.is_calibrated = known.is_calibrated;
  profile.mode = name_of(mode);
  profile.seconds = times.seconds();
  for (const InstructionTime& time : times.instructions()) {
    const Instruction& instruction = schedule.instructions[time.index];
    profile.instructions.push_back({.index = time.index,
                                    .name = instruction.op,
                                    .kernel = std::string(kernel_of(instruction)),
                                    .module = instruction.source.module,
                                    .phase = instruction.source.phase,
                                    .work = instruction.work,
                                    .begin_seconds = time.begin_seconds,
                                    .seconds = time.end_seconds - time.begin_seconds,
                                    .predicted_seconds = predicted.entries[time.index].seconds(),
                                    .work_class = std::string(name_of(predicted.entries[time.index].work))});
  }
  return profile;
}

}  // namespace stepc
