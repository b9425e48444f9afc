#include "engine/ranks/stage_steps.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>

#include "engine/ranks/stage_budget.h"
#include "runtime/kernel_sources.h"

namespace stepc {

StageSteps::StageSteps(const Pipeline& pipeline, const Verify& verify, StageRanks ranks, KernelSources& kernels,
                       ShardedState& state)
    : verify_(verify), ranks_(std::move(ranks)), kernels_(kernels), state_(state), cuts_(pipeline) {}

std::unique_ptr<StageRun> StageSteps::run_of(StageParts parts, const CompileOptions& options, uint64_t held) {
  return std::make_unique<StageRun>(std::move(parts), ranks_, kernels_, options, verify_, state_, held);
}

StageSteps::Runs StageSteps::runs_of(const BatchCut& cut, const CompileOptions& options) {
  Runs runs;
  const auto plan = [&](std::vector<StageParts> parts, const MemoryBudget& budget) {
    CompileOptions within = options;
    within.budget = budget;
    std::vector<StageParts> updates = cuts_.updates(cut, parts, runs.sums);
    std::vector<const StageParts*> all;
    for (const std::vector<StageParts>* some : {&parts, &updates})
      for (const StageParts& one : *some) all.push_back(&one);
    const uint64_t held = held_bytes(all, ranks_.own);
    runs.micro_batches.clear();
    for (StageParts& one : parts) runs.micro_batches.push_back(run_of(std::move(one), within, held));
    if (runs.updates.empty())
      for (StageParts& one : updates) runs.updates.push_back(run_of(std::move(one), within, held));
    uint64_t step = 0;
    for (const auto* some : {&runs.micro_batches, &runs.updates})
      for (const auto& run : *some) step = std::max(step, run->step_bytes());
    StageCost cost{static_cast<uint64_t>(ranks_.all->largest(static_cast<int64_t>(held + step)))};
    if (options.budget.kind == MemoryBudget::Kind::kAuto)
      for (const auto& run : runs.micro_batches) cost.seconds += run->predict({options.target}).seconds;
    return cost;
  };
  if (is_training(cut.rounds[0].micro_batch)) {
    runs.weighed = plan_within(cut, cuts_, options, plan);
  } else {
    std::vector<StageParts> parts;
    for (const BatchCut::Round& round : cut.rounds)
      parts.push_back(cuts_.forward(round.micro_batch, cut.micro_batches));
    plan(std::move(parts), {});
  }
  return runs;
}

void StageSteps::sum_shared(const std::vector<std::string>& sums, const StageHolders& holders) {
  for (const std::string& key : sums) {
    const auto held = holders.find(key);
    if (held == holders.end() || !state_.has(Owner::kGradient, key)) continue;
    const std::vector<int64_t>& on = held->second;
    if (on.size() < 2 || std::ranges::find(on, ranks_.own) == on.end()) continue;
    const at::Tensor& part = state_.part(Owner::kGradient, key);
    const uint64_t bytes = scratch_bytes_for(part, std::ssize(on));
    const at::Tensor scratch = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
    across_stages(ranks_, on).all_reduce(part, ReduceOp::kSum, scratch.mutable_data_ptr(), bytes);
  }
}

}  // namespace stepc
