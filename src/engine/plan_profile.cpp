#include "engine/plan_profile.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "ops/op_def.h"
#include "passes/functionalise.h"

namespace stepc {

namespace {

// "mul+add+sum": the ops of a group that compute something, each once; a long list is cut.
std::string name_of_unit(const Graph& graph, const Unit& unit) {
  constexpr size_t kMost = 4;
  std::vector<std::string> ops;
  for (NodeId id : unit.nodes) {
    const Node& node = graph.nodes[id.index()];
    const bool computes = node.aten || (!op_def(node.op).has(Trait::kView) && !op_def(node.op).has(Trait::kConstant));
    if (computes && std::ranges::find(ops, node.op) == ops.end()) ops.push_back(node.op);
  }
  if (ops.empty()) return graph.nodes[unit.nodes.front().index()].op;
  std::string name;
  for (size_t i = 0; i < std::min(ops.size(), kMost); ++i) name += (i == 0 ? "" : "+") + ops[i];
  return ops.size() > kMost ? str("{}+{} more", name, ops.size() - kMost) : name;
}

void add_units(const GraphPlan& plan, const RunTimes& times, Profile& profile) {
  for (const InstructionTime& time : times.instructions()) {
    const Unit& unit = plan.units[time.index];
    const bool is_product_first = is_product(plan.graph.nodes[unit.nodes.front().index()]);
    const NodeId main = is_product_first ? unit.nodes.front() : unit.nodes.back();  // what the unit is for
    const Source& source = plan.graph.nodes[main.index()].source;
    profile.instructions.push_back({.index = time.index,
                                    .name = name_of_unit(plan.graph, unit),
                                    .kernel = unit.kernel    ? "generated"
                                              : time.blocked ? "blocked"
                                                             : "ATen",
                                    .module = source.module,
                                    .phase = source.phase,
                                    .work = work_of(plan.graph, unit.nodes, unit.inputs, unit.outputs),
                                    .begin_seconds = time.begin_seconds,
                                    .seconds = time.end_seconds - time.begin_seconds});
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

void add_calls(const Plan& plan, const RunTimes& times, Profile& profile) {
  const Trace& trace = plan.trace();
  const std::vector<Work> work = work_of_calls(trace);
  for (const InstructionTime& time : times.instructions()) {
    const CallId id = plan.schedule().instructions[time.index].call;
    const Call& call = trace.calls[id.index()];
    profile.instructions.push_back({.index = time.index,
                                    .name = call.op,
                                    .kernel = "ATen",
                                    .module = call.module,
                                    .phase = call.phase,
                                    .work = work[id.index()],
                                    .begin_seconds = time.begin_seconds,
                                    .seconds = time.end_seconds - time.begin_seconds});
  }
}

}  // namespace

Profile profile_of(const Plan& plan, const RunTimes& times) {
  Profile profile;
  profile.mode = name_of(times.of_graph() ? Mode::kFast : Mode::kExact);
  profile.seconds = times.seconds();
  if (times.of_graph())
    add_units(plan.fast()->plan(), times, profile);
  else
    add_calls(plan, times, profile);
  return profile;
}

}  // namespace stepc
