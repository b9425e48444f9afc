#include "train/step/stage_steps.h"

#include <set>
#include <utility>

#include <ATen/Functions.h>

#include "ir/alignment.h"
#include "ir/rank_parts.h"
#include "runtime/kernel_sources.h"

namespace stepc::train {

StageSteps::StageSteps(const RunConfig& config, StageRanks ranks, KernelSources& kernels, ShardedState& state)
    : verify_(parse_verify(config.train.verify)),
      ranks_(std::move(ranks)),
      kernels_(kernels),
      state_(state),
      cuts_(config) {}

std::unique_ptr<StageRun> StageSteps::run_of(StageParts parts, const CompileOptions& options) {
  return std::make_unique<StageRun>(std::move(parts.cut), std::move(parts.program), ranks_, kernels_, options, verify_,
                                    state_);
}

std::unique_ptr<StageRun> StageSteps::micro_batch(const VirtualPlan& captured, CompileOptions& options) {
  return run_of(cuts_.micro_batch(captured, kernels_, options), options);
}

std::unique_ptr<StageRun> StageSteps::update(const VirtualPlan& captured, CompileOptions& options) {
  return run_of(cuts_.update(captured, kernels_, options), options);
}

std::unique_ptr<StageRun> StageSteps::forward(const VirtualPlan& captured, CompileOptions& options) {
  return run_of(cuts_.forward(captured, kernels_, options), options);
}

void StageSteps::sum_shared_gradients() {
  for (const auto& [key, stages] : cuts_.holders()) {
    std::set<int64_t> on;
    for (const int64_t stage : stages) on.insert(stage % ranks_.count);
    if (on.size() < 2 || !on.contains(ranks_.own) || !state_.has(Owner::kGradient, key)) continue;
    const at::Tensor& held = state_.part(Owner::kGradient, key);
    const uint64_t bytes =
        aligned(reduction_scratch_bytes(held.numel(), static_cast<uint64_t>(held.element_size()), std::ssize(on)));
    const at::Tensor scratch = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
    across_stages(ranks_, {on.begin(), on.end()}).all_reduce(held, ReduceOp::kSum, scratch.mutable_data_ptr(), bytes);
  }
}

}  // namespace stepc::train
