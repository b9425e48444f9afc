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
      return "blocked";
    case Instruction::Kind::kLoss:
      return instruction.loss ? "ATen" : "blocked";
    case Instruction::Kind::kCollective:
      return "ranks";
    default:
      return instruction.aten && instruction.aten->rule ? "own" : "ATen";
  }
}

}  // namespace

Profile profile_of(const Schedule& schedule, Mode mode, const RunTimes& times, const KnownTarget& known) {
  const bool is_on_device = !schedule.device.empty();
  Profile profile;
  profile.is_predicted = is_priced(schedule, known);
  const Timeline predicted = profile.is_predicted ? timeline_of(schedule, known) : Timeline();
  profile.device = schedule.device;
  profile.target = known.target;
  profile.is_calibrated = known.is_calibrated;
  profile.mode = name_of(mode);
  profile.seconds = times.seconds();
  if (is_on_device) profile.call_seconds = times.call_seconds();
  for (const InstructionTime& time : times.instructions()) {
    const Instruction& instruction = schedule.instructions[time.index];
    const TimelineEntry entry = profile.is_predicted ? predicted.entries[time.index] : TimelineEntry();
    const double call_seconds = time.end_seconds - time.begin_seconds;
    profile.instructions.push_back(
        {.index = time.index,
         .name = instruction.op,
         .kernel = std::string(kernel_of(instruction)),
         .module = instruction.source.module,
         .phase = instruction.source.phase,
         .work = instruction.work,
         .begin_seconds = is_on_device ? time.device_begin_seconds : time.begin_seconds,
         .seconds = is_on_device ? time.device_end_seconds - time.device_begin_seconds : call_seconds,
         .call_begin_seconds = is_on_device ? time.begin_seconds : 0,
         .call_seconds = is_on_device ? call_seconds : 0,
         .predicted_seconds = entry.seconds(),
         .work_class = std::string(name_of(entry.work))});
  }
  return profile;
}

}  // namespace stepc
