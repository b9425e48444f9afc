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
    default:
      return instruction.aten && instruction.aten->rule ? "own" : "ATen";
  }
}

}  // namespace

Profile profile_of(const Plan& plan, const RunTimes& times, const Target& target) {
  const Timeline predicted = simulate(plan.schedule(), target);
  Profile profile;
  profile.target = target;
  profile.mode = name_of(plan.graph() != nullptr ? Mode::kFast : Mode::kExact);
  profile.seconds = times.seconds();
  for (const InstructionTime& time : times.instructions()) {
    const Instruction& instruction = plan.schedule().instructions[time.index];
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
