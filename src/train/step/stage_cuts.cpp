#include "train/step/stage_cuts.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "passes/partition/partition.h"
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

Graph graph_of(const VirtualPlan& captured, KernelSources& kernels, CompileOptions& options) {
  Strategy& strategy = options.strategy;
  if (strategy.context == Context::kByPrice)  // a way of attention for all stages: that of the step in one piece
    strategy.context =
        strategy.mesh.find("cp") ? plan_fast(captured.trace, kernels, options).context : Context::kGather;
  Graph graph = rank_graph(captured.trace, options);
  keep_parameters(strategy, graph);
  return graph;
}

}  // namespace

StageCuts::StageCuts(const RunConfig& config) : begins_(config.parallel.stages) {
  check_stages(config);
  order_ = stage_order(config.parallel.order, config.parallel.pp, config.train.grad_accum, config.parallel.chunks);
}

StageParts StageCuts::micro_batch(const VirtualPlan& captured, KernelSources& kernels, CompileOptions& options) {
  const Graph graph = graph_of(captured, kernels, options);
  if (begins_.empty()) begins_ = with_key("parallel.pp", [&] { return balanced_stages(graph, order_.stages); });
  const StagePlaces places = with_key("parallel.stages", [&] { return place_nodes(graph, begins_); });
  if (holders_.empty()) holders_ = places.of_parameter;
  INTERNAL_CHECK(holders_ == places.of_parameter, "rows of another length have parameters on other stages");
  StageParts parts{cut_micro_batch(graph, places), {}};
  parts.program = with_key("parallel.order", [&] { return make_program(parts.cut, order_); });
  return parts;
}

StageParts StageCuts::update(const VirtualPlan& captured, KernelSources& kernels, CompileOptions& options) const {
  std::map<std::string, std::vector<int64_t>> on;  // ranks: what belongs to no parameter is updated once on each
  for (const auto& [key, stages] : holders_) {
    std::set<int64_t> ranks_of;
    for (const int64_t stage : stages) ranks_of.insert(stage % ranks());
    on[key] = {ranks_of.begin(), ranks_of.end()};
  }
  StageParts parts{cut_update(graph_of(captured, kernels, options), ranks(), on), {}};
  parts.program = make_program(parts.cut, ranks());
  return parts;
}

StageParts StageCuts::forward(const VirtualPlan& captured, KernelSources& kernels, CompileOptions& options) const {
  const Graph graph = graph_of(captured, kernels, options);
  const StagePlaces places = place_nodes(graph, begins_);
  for (const auto& [key, stages] : places.of_parameter)
    for (const int64_t stage : stages)
      INTERNAL_CHECK(std::ranges::find(holders_.at(key), stage) != holders_.at(key).end(),
                     "stage {} evaluates with '{}', which it does not hold", stage, key);
  StageParts parts{cut_micro_batch(graph, places), {}};
  parts.program = make_program(parts.cut, forward_order(order_.stages, ranks()));
  return parts;
}

bool StageCuts::saves(int64_t rank, Owner owner, const std::string& key) const {
  const InputKind kind = owner == Owner::kParameter        ? InputKind::kParameter
                         : owner == Owner::kOptimizerState ? InputKind::kOptimizerState
                                                           : InputKind::kBuffer;
  const std::vector<int64_t>* of = holders_of(kind, key, holders_);
  return (of == nullptr ? 0 : of->front() % ranks()) == rank;
}

}  // namespace stepc::train
