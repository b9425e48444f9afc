#include "plan/plan_trace.h"

#include <exception>
#include <set>
#include <utility>
#include <vector>

#include "passes/from_trace/functionalise.h"
#include "plan/price.h"
#include "schedule/from_trace.h"

namespace stepc {

namespace {

double bytes_of_window(const Value& value) {
  return elements_shown(value.sizes, value.strides) * static_cast<double>(size_of(value.dtype));
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

// The traffic, and the arithmetic that the program says of an operator of its own.
Work work_of_call(const Trace& trace, const Call& call) {
  Work work;
  work.bytes = call.rule && call.rule->bytes ? *call.rule->bytes : bytes_of_call(trace, call);
  if (!call.rule) return work;
  bool is_narrow = false, is_first = true;
  for_each_value(call.args, [&](ValueId id) {
    const DType dtype = trace.values[id.index()].dtype;
    if (std::exchange(is_first, false)) is_narrow = is_floating(dtype) && size_of(dtype) == 2;
  });
  (is_narrow ? work.narrow_flops : work.flops) = call.rule->flops;
  return work;
}

// By call of the trace.
std::vector<Work> work_of_calls(const Trace& trace) {
  std::vector<Work> work;
  for (const Call& call : trace.calls) work.push_back(work_of_call(trace, call));
  try {
    const auto [graph, calls] = functionalise_calls(trace);
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      if (!calls[n].valid() || (graph.nodes[n].aten && graph.nodes[n].aten->rule)) continue;
      const Work node = work_of(graph, graph.nodes[n]);
      work[calls[n].index()].flops += node.flops;
      work[calls[n].index()].narrow_flops += node.narrow_flops;
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the traffic is known all the same
    // No Graph is needed to replay what was recorded; whoever needs one says why there is none.
  }
  return work;
}

}  // namespace

Schedule plan_trace(const Trace& trace, int threads, const Features& features) {
  Schedule schedule = schedule_trace(trace, features, threads);
  const std::vector<Work> work = work_of_calls(trace);
  for (Instruction& instruction : schedule.instructions)
    if (instruction.kind == Instruction::Kind::kAten && instruction.call.valid())
      instruction.work = work[instruction.call.index()];
  return schedule;
}

}  // namespace stepc
