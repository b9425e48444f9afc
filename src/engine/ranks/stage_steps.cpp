#include "engine/ranks/stage_steps.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>

#include "engine/ranks/stage_budget.h"
#include "ir/alignment.h"
#include "ir/rank_parts.h"
#include "runtime/kernel_sources.h"

namespace stepc {

StageSteps::StageSteps(const Pipeline& pipeline, const Verify& verify, StageRanks ranks, KernelSources& kernels,
                       ShardedState& state)
    : verify_(verify), ranks_(std::move(ranks)), kernels_(kernels), state_(state), cuts_(pipeline) {}

std::unique_ptr<StageRun> StageSteps::run_of(StageParts parts, const CompileOptions& options, uint64_t held) {
  return std::make_unique<StageRun>(std::move(parts), ranks_, kernels_, options, verify_, state_, held);
}

StageSteps::Runs StageSteps::runs_within(const Graph& micro_batch, const UpdatesFn& updates,
                                         const CompileOptions& options) {
  Runs runs;
  runs.weighed = plan_within(micro_batch, cuts_, options, [&](StageParts parts, const MemoryBudget& budget) {
    CompileOptions within = options;
    within.budget = budget;
    std::vector<StageParts> of_updates = updates(parts);
    std::vector<const StageParts*> all = {&parts};
    for (const StageParts& one : of_updates) all.push_back(&one);
    const uint64_t held = held_bytes(all, ranks_.own);
    runs.micro_batch = run_of(std::move(parts), within, held);
    if (runs.updates.empty())
      for (StageParts& one : of_updates) runs.updates.push_back(run_of(std::move(one), within, held));
    uint64_t step = runs.micro_batch->step_bytes();
    for (const auto& update : runs.updates) step = std::max(step, update->step_bytes());
    StageCost cost{static_cast<uint64_t>(ranks_.all->largest(static_cast<int64_t>(held + step)))};
    if (options.budget.kind == MemoryBudget::Kind::kAuto)
      cost.seconds = runs.micro_batch->predict({options.target}).seconds;
    return cost;
  });
  return runs;
}

void StageSteps::sum_shared_gradients(const std::map<std::string, std::vector<int64_t>>& holders) {
  for (const auto& [key, on] : holders) {
    if (on.size() < 2 || std::ranges::find(on, ranks_.own) == on.end() || !state_.has(Owner::kGradient, key)) continue;
    const at::Tensor& held = state_.part(Owner::kGradient, key);
    const uint64_t bytes =
        aligned(reduction_scratch_bytes(held.numel(), static_cast<uint64_t>(held.element_size()), std::ssize(on)));
    const at::Tensor scratch = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
    across_stages(ranks_, on).all_reduce(held, ReduceOp::kSum, scratch.mutable_data_ptr(), bytes);
  }
}

}  // namespace stepc
