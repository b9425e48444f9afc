// Exchanges that the backward pass makes again, where nothing else meets a budget, on ranks that are threads: the same
// bits as where each is made once.
#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "comm/ranks.h"
#include "plan/plan_graph.h"
#include "plan/simulate.h"
#include "runtime/executor.h"
#include "tests/plan/layered_step.h"

namespace stepc {
namespace {

constexpr int64_t kRankTokens = 1024, kRankWidth = 64, kRankLayers = 12;

PlannedGraph planned_for(const Graph& graph, Strategy strategy, const Features& features, MemoryBudget budget) {
  PlanGraphOptions options;
  options.target.features = features;
  options.target.threads = 1;
  options.passes.settings.strategy = std::move(strategy);
  options.budget = budget;
  PlannedGraph planned = plan_graph(graph, nullptr, options);
  verify(planned.plan.schedule);
  return planned;
}

double sent_by(const PlannedGraph& planned) {
  double bytes = 0;
  for (const Communication& one : communication_of(planned.graph)) bytes += one.bytes;
  return bytes;
}

// What a rank has of a whole tensor: each dimension whole, or one piece of two.
at::Tensor part_of(at::Tensor whole, const Shape& local, int64_t rank) {
  for (int64_t d = 0; d < whole.dim(); ++d)
    if (whole.size(d) != local[static_cast<size_t>(d)]) whole = whole.chunk(2, d)[static_cast<size_t>(rank)];
  return whole.clone(at::MemoryFormat::Contiguous);
}

// The library's matmuls round otherwise than stepc's own; a budget may ask for them.
size_t of_library(const Schedule& schedule) {
  return static_cast<size_t>(std::ranges::count_if(schedule.instructions, [](const Instruction& one) {
    return one.kind == Instruction::Kind::kOp && one.op == "matmul";
  }));
}

// By rank, what it holds after a step.
std::vector<std::vector<at::Tensor>> held_after(const Schedule& schedule) {
  std::vector<std::vector<at::Tensor>> held(2);
  std::vector<std::thread> threads;
  for (const auto& ranks : Ranks::threads(2))
    threads.emplace_back([&, ranks] {
      at::set_num_threads(1);
      std::vector<at::Tensor> tensors;
      for (size_t i = 0; i < schedule.inputs.size(); ++i) {
        const ScheduleInput& input = schedule.inputs[i];
        at::Tensor& tensor = tensors.emplace_back();
        if (!is_of_program(input.kind)) continue;
        const bool is_weight = input.kind == InputKind::kParameter;
        // Weights that keep the size of what goes through all layers.
        const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(i);
        const at::Tensor whole = at::randn({is_weight ? kRankWidth : kRankTokens, kRankWidth}, generator)
                                     .mul(is_weight ? 1.5 / std::sqrt(static_cast<double>(kRankWidth)) : 1.0);
        tensor = part_of(whole, schedule.operands[input.operand.index()].sizes, ranks->rank());
      }
      KernelSources kernels{{}};
      Executor executor(schedule, &kernels, ranks);
      executor.run({.tensors = tensors});
      for (size_t i = 0; i < tensors.size(); ++i)
        if (schedule.inputs[i].written) held[static_cast<size_t>(ranks->rank())].push_back(tensors[i]);
    });
  for (std::thread& thread : threads) thread.join();
  return held;
}

TEST(RepeatedExchanges, ChangeNoBit) {
  const Graph graph = layered_step(kRankLayers, kRankTokens, kRankWidth, "f32");
  const Features features = features_of(probe_micro_kernels());
  for (const bool overlaps : {false, true}) {
    SCOPED_TRACE(overlaps ? "beside the computation" : "blocking");
    Strategy strategy = {make_mesh({{"tp", 2}}), 0};
    if (overlaps) strategy.overlap_bytes = 0;
    const PlannedGraph once = planned_for(graph, strategy, features, {});
    const Schedule& roomy = once.plan.schedule;
    const PlannedGraph twice = planned_for(graph, strategy, features,
                                           {MemoryBudget::Kind::kBytes, roomy.needed_bytes() - roomy.peak_bytes() / 3});
    ASSERT_GT(sent_by(twice), sent_by(once)) << "the budget forces no exchange";
    ASSERT_EQ(of_library(twice.plan.schedule) > 0, of_library(roomy) > 0);
    const auto wanted = held_after(roomy), got = held_after(twice.plan.schedule);
    for (size_t rank = 0; rank < wanted.size(); ++rank) {
      ASSERT_EQ(wanted[rank].size(), static_cast<size_t>(kRankLayers));
      ASSERT_EQ(got[rank].size(), wanted[rank].size());
      for (size_t w = 0; w < wanted[rank].size(); ++w) {
        EXPECT_TRUE(wanted[rank][w].isfinite().all().item<bool>());
        EXPECT_TRUE(got[rank][w].equal(wanted[rank][w])) << "weight " << w << " of rank " << rank << " differs by "
                                                         << (got[rank][w] - wanted[rank][w]).abs().max().item<double>()
                                                         << " of " << wanted[rank][w].abs().max().item<double>();
      }
    }
  }
}

}  // namespace
}  // namespace stepc
