#include "train/step/stage_steps.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/Functions.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/text.h"
#include "ir/alignment.h"
#include "ir/rank_parts.h"
#include "passes/partition/partition.h"
#include "runtime/kernel_sources.h"
#include "train/config/parallel.h"

namespace stepc::train {

namespace {

// All passes of one micro-batch, without a backward pass.
StageOrder forward_order(int64_t stages, int64_t ranks) {
  StageOrder order{stages, 1, std::vector<std::vector<StagePass>>(static_cast<size_t>(ranks))};
  for (int64_t s = 0; s < stages; ++s) order.passes[static_cast<size_t>(s % ranks)].push_back({s, false, 0});
  return order;
}

template <class Work>
auto with_key(std::string_view key, const Work& work) {
  try {
    return work();
  } catch (const UserError& error) {
    user_error("{}: {}", key, error.what());
  }
}

}  // namespace

StageSteps::StageSteps(const RunConfig& config, StageRanks ranks, KernelSources& kernels, ShardedState& state)
    : config_(config), ranks_(std::move(ranks)), kernels_(kernels), state_(state), begins_(config.parallel.stages) {
  check_stages(config);
  order_ = stage_order(config.parallel.order, ranks_.count, config.train.grad_accum);
}

Graph StageSteps::graph_of(const VirtualPlan& captured, CompileOptions& options) {
  Strategy& strategy = options.strategy;
  if (strategy.context == Context::kByPrice)  // a way of attention for all stages: that of the step in one piece
    strategy.context =
        strategy.mesh.find("cp") ? plan_fast(captured.trace, kernels_, options).context : Context::kGather;
  Graph graph = rank_graph(captured.trace, options);
  keep_parameters(strategy, graph);
  return graph;
}

std::unique_ptr<StageRun> StageSteps::run_of(StageCut cut, StageProgram program, const CompileOptions& options) {
  return std::make_unique<StageRun>(std::move(cut), std::move(program), ranks_, kernels_, options,
                                    parse_verify(config_.train.verify), state_);
}

std::unique_ptr<StageRun> StageSteps::micro_batch(const VirtualPlan& captured, CompileOptions& options) {
  const Graph graph = graph_of(captured, options);
  if (begins_.empty()) begins_ = with_key("parallel.pp", [&] { return balanced_stages(graph, order_.stages); });
  const StagePlaces places = with_key("parallel.stages", [&] { return place_nodes(graph, begins_); });
  if (holders_.empty()) holders_ = places.of_parameter;
  INTERNAL_CHECK(holders_ == places.of_parameter, "rows of another length have parameters on other stages");
  StageCut cut = cut_micro_batch(graph, places);
  StageProgram program = with_key("parallel.order", [&] { return make_program(cut, order_); });
  return run_of(std::move(cut), std::move(program), options);
}

std::unique_ptr<StageRun> StageSteps::update(const VirtualPlan& captured, CompileOptions& options) {
  StageCut cut = cut_update(graph_of(captured, options), order_.stages, holders_);
  StageProgram program = make_program(cut, ranks_.count);
  return run_of(std::move(cut), std::move(program), options);
}

std::unique_ptr<StageRun> StageSteps::forward(const VirtualPlan& captured, CompileOptions& options) {
  const Graph graph = graph_of(captured, options);
  const StagePlaces places = place_nodes(graph, begins_);
  for (const auto& [key, stages] : places.of_parameter)
    for (const int64_t stage : stages)
      INTERNAL_CHECK(std::ranges::find(holders_.at(key), stage) != holders_.at(key).end(),
                     "stage {} evaluates with '{}', which it does not hold", stage, key);
  StageCut cut = cut_micro_batch(graph, places);
  StageProgram program = make_program(cut, forward_order(order_.stages, ranks_.count));
  return run_of(std::move(cut), std::move(program), options);
}

void StageSteps::sum_shared_gradients() {
  for (const auto& [key, stages] : holders_) {
    std::set<int64_t> on;
    for (const int64_t stage : stages) on.insert(stage % ranks_.count);
    if (on.size() < 2 || !on.contains(ranks_.own) || !state_.has(Owner::kGradient, key)) continue;
    const at::Tensor& held = state_.part(Owner::kGradient, key);
    const uint64_t bytes =
        aligned(reduction_scratch_bytes(held.numel(), static_cast<uint64_t>(held.element_size()), std::ssize(on)));
    const at::Tensor scratch = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
    across_stages(ranks_, {on.begin(), on.end()})
        .all_reduce(held, ReduceOp::kSum, scratch.mutable_data_ptr(), bytes);
  }
}

bool StageSteps::saves(Owner owner, const std::string& key) const {
  const InputKind kind = owner == Owner::kParameter        ? InputKind::kParameter
                         : owner == Owner::kOptimizerState ? InputKind::kOptimizerState
                                                           : InputKind::kBuffer;
  const std::vector<int64_t>* of = holders_of(kind, key, holders_);
  return (of == nullptr ? 0 : of->front() % ranks_.count) == ranks_.own;
}

std::string StageSteps::report() const {
  return str("{} stages, which begin with {}, in the order \"{}\"", order_.stages, fmt::join(begins_, ", "),
             config_.parallel.order);
}

}  // namespace stepc::train
