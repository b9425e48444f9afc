#include "engine/plan_profile.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "passes/functionalise.h"

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
      return "ATen";
  }
}

// The elements that a window shows, each once.
double bytes_of_window(const Value& value) {
  auto bytes = static_cast<double>(size_of(value.dtype));
  for (size_t d = 0; d < value.sizes.size(); ++d)
    if (value.strides[d] != 0 || value.sizes[d] == 0) bytes *= static_cast<double>(value.sizes[d]);
  return bytes;
}

// What a call is given and what it leaves; what it changes counts twice.
double bytes_of_call(const Trace& trace, const Call& call) {
  std::set<ValueId> given, made;
  for_each_value(call.args, [&](ValueId value) { given.insert(value); });
  for_each_value(call.results, [&](ValueId value) {
    if (!given.contains(value)) made.insert(value);
  });
  made.insert(call.writes.begin(), call.writes.end());
  double bytes = 0;
  for (const std::set<ValueId>& values : {given, made})
    for (ValueId value : values) bytes += bytes_of_window(trace.values[value.index()]);
  return bytes;
}

// By call of the trace: the arithmetic of the ops that it is; nothing where the step is no Graph.
std::vector<Work> work_of_calls(const Trace& trace) {
  std::vector<Work> work(trace.calls.size());
  for (size_t c = 0; c < work.size(); ++c) work[c].bytes = bytes_of_call(trace, trace.calls[c]);
  try {
    const auto [graph, calls] = functionalise_calls(trace);
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      if (!calls[n].valid()) continue;
      const Work node = work_of(graph, graph.nodes[n]);
      work[calls[n].index()].flops += node.flops;
      work[calls[n].index()].narrow_flops += node.narrow_flops;
    }
  } catch (const UserError&) {  // NOLINT(bugprone-empty-catch): the traffic is known all the same
  }
  return work;
}

}  // namespace

Profile profile_of(const Plan& plan, const RunTimes& times) {
  Profile profile;
  const bool of_graph = plan.graph() != nullptr;
  profile.mode = name_of(of_graph ? Mode::kFast : Mode::kExact);
  profile.seconds = times.seconds();
  const std::vector<Work> work_of_call = of_graph ? std::vector<Work>() : work_of_calls(plan.trace());
  for (const InstructionTime& time : times.instructions()) {
    const Instruction& instruction = plan.schedule().instructions[time.index];
    const bool is_recorded = !of_graph && instruction.call.valid();
    profile.instructions.push_back({.index = time.index,
                                    .name = instruction.op,
                                    .kernel = std::string(kernel_of(instruction)),
                                    .module = instruction.source.module,
                                    .phase = instruction.source.phase,
                                    .work = is_recorded ? work_of_call[instruction.call.index()] : instruction.work,
                                    .begin_seconds = time.begin_seconds,
                                    .seconds = time.end_seconds - time.begin_seconds});
  }
  return profile;
}

}  // namespace stepc
