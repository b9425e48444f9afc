// Graphs on their way to an Executor as the engine takes them: workspaces are measured, and of a group that no code can
// be generated for the nodes run one by one.
#pragma once

#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include "aten/cpu_hook.h"
#include "runtime/executor.h"
#include "runtime/measure_workspace.h"
#include "schedule/from_graph.h"

namespace stepc::test {

inline GraphSchedule plan_measured(const Graph& graph, GraphScheduleOptions options) {
  install_cpu_hook();
  GraphSchedule plan = schedule_graph(graph, options);
  for (const UnknownWorkspace& call : plan.unknown) {
    const std::optional<Workspace> measured = measure_workspace(call, options.threads);
    EXPECT_TRUE(measured.has_value()) << call.key;
    options.workspaces.emplace(call.key, measured.value_or(workspace_by_rule(call)));
  }
  plan = schedule_graph(graph, options);
  EXPECT_TRUE(plan.unknown.empty());
  verify(plan.schedule);
  return plan;
}

struct PlannedGraph {
  GraphSchedule plan;
  std::unique_ptr<Executor> executor;
};

inline PlannedGraph planned(const Graph& graph, KernelSources& kernels, int threads = 2) {
  GraphScheduleOptions options{.features = features_of(kernels.micro_kernels), .threads = threads};
  PlannedGraph out;
  while (out.executor == nullptr) {
    out.plan = plan_measured(graph, options);
    try {
      out.executor = std::make_unique<Executor>(out.plan.schedule, &kernels);
    } catch (const RefusedPrograms& refused) {
      const size_t before = options.refused.size();
      for (size_t i = 0; i < out.plan.schedule.instructions.size(); ++i) {
        const Instruction& instruction = out.plan.schedule.instructions[i];
        std::vector<uint32_t> programs = {instruction.program};
        if (instruction.matmul) programs = instruction.matmul->epilogue_programs;
        for (uint32_t program : programs)
          if (const auto why = refused.why.find(program); why != refused.why.end())
            options.refused.emplace(out.plan.group_of[i], why->second);
      }
      if (options.refused.size() == before) throw;
    }
  }
  return out;
}

}  // namespace stepc::test
