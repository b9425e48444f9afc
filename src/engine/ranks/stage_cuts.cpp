#include "engine/ranks/stage_cuts.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "base/check.h"
#include "ops/op_def.h"
#include "passes/partition/partition.h"
#include "passes/stages/recompute_stages.h"
#include "plan/rank_graph.h"

namespace stepc {

namespace {

// The order of the same ranks for this many micro-batches without backward passes.
StageOrder forward_order(const StageOrder& like, int64_t micro_batches) {
  StageOrder order{like.stages, micro_batches, std::vector<std::vector<StagePass>>(like.passes.size()), like.is_v};
  for (int64_t s = 0; s < like.stages; ++s)
    for (int64_t m = 0; m < micro_batches; ++m)
      order.passes[static_cast<size_t>(like.rank_of(s))].push_back({s, StagePass::Kind::kForward, m});
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

// Whether all elements are one number, which tensors of several parameters may share.
bool is_one_number(const Graph& graph, TensorId tensor) {
  const Node* node = graph.producer(tensor);
  while (node != nullptr && has(*node, Trait::kView)) {
    tensor = node->inputs[0];
    node = graph.producer(tensor);
  }
  return element_count(graph.shape(tensor)) < 2 || (node != nullptr && has(*node, Trait::kConstant));
}

std::vector<int64_t> ranks_of(const std::vector<int64_t>& stages, const StageOrder& order) {
  std::set<int64_t> of;
  for (const int64_t stage : stages) of.insert(order.rank_of(stage));
  return {of.begin(), of.end()};
}

// By tensor held between the parts of a step: the ranks along pp that add to it or read it, and the ranks that hold the
// tensors which updates change by it or compute from it.
StageHolders holders_of_sums(const BatchCut& cut, const std::vector<StageParts>& micro_batches,
                             const StageHolders& holders) {
  std::map<std::string, std::set<int64_t>> on;
  for (const StageParts& parts : micro_batches)
    for (size_t f = 0; f < parts.cut.functions.size(); ++f)
      for (const GraphInput& input : parts.cut.functions[f].graph.inputs)
        if (input.kind == InputKind::kGradient) on[input.key].insert(parts.program.functions[f].rank);
  for (const BatchCut::Round& round : cut.rounds) {
    const Graph& update = round.update;
    // A gradient, its parameter and the optimizer's state of it are computed from each other element by element.
    std::vector<uint32_t> group(update.tensors.size());
    std::iota(group.begin(), group.end(), uint32_t{0});
    const auto root = [&](TensorId tensor) {
      uint32_t at = tensor.value;
      while (group[at] != at) at = group[at] = group[group[at]];
      return at;
    };
    for (const Node& node : update.nodes) {
      if (!has(node, Trait::kElementwise) || element_count(update.shape(node.outputs[0])) < 2) continue;
      for (TensorId input : node.inputs)
        if (update.shape(input) == update.shape(node.outputs[0]) && !is_one_number(update, input))
          group[root(input)] = root(node.outputs[0]);
    }
    for (const GraphOutput& output : update.outputs)
      if (output.kind == GraphOutput::Kind::kUpdate && !is_one_number(update, output.tensor))
        group[root(update.inputs[output.input].tensor)] = root(output.tensor);
    std::map<uint32_t, std::set<int64_t>> of_group;
    for (const GraphInput& input : update.inputs)
      if (const auto* of = holders_of(input.kind, input.key, holders))
        of_group[root(input.tensor)].insert(of->begin(), of->end());
    for (const GraphInput& input : update.inputs)
      if (input.kind == InputKind::kGradient) on[input.key].merge(std::set(of_group[root(input.tensor)]));
  }
  StageHolders out;
  for (const auto& [key, ranks] : on)
    if (!ranks.empty()) out[key] = {ranks.begin(), ranks.end()};
  return out;
}

}  // namespace

int64_t chunks_of(const Pipeline& pipeline) { return chunks_of(pipeline.order).value_or(pipeline.chunks); }

StageOrder order_of(const Pipeline& pipeline) {
  StageOrder order = stage_order(pipeline.order, pipeline.ranks, pipeline.micro_batches, pipeline.chunks);
  USER_CHECK(pipeline.stages.empty() || std::ssize(pipeline.stages) == order.stages,
             "parallel.stages names {} modules, and there are {} stages: it says with which each begins",
             pipeline.stages.size(), order.stages);
  return order;
}

bool is_training(const Graph& micro_batch) {
  return std::ranges::any_of(micro_batch.nodes, [](const Node& node) { return node.source.phase == Phase::kBackward; });
}

Graph rank_graph_of(const VirtualPlan& captured, KernelSources& kernels, CompileOptions& options) {
  USER_CHECK(captured.obstacle.empty(), "this step cannot run on several ranks, because it cannot be planned: {}",
             captured.obstacle);
  options.memory = memory_of(captured.trace);
  std::erase_if(options.memory.on_host, [](const auto& input) { return input.first == InputKind::kBatch; });
  options.target = target_on(captured.trace.device, std::move(options.target), kernels);
  Strategy& strategy = options.strategy;
  if (strategy.context == Context::kByPrice) {  // a way of attention for all stages: that of the step in one piece
    CompileOptions whole = options;
    std::erase_if(whole.strategy.mesh.axes, [](const MeshAxis& axis) { return axis.name == kMicroBatchAxis; });
    strategy.context = strategy.mesh.find("cp") ? plan_fast(captured.trace, kernels, whole).context : Context::kGather;
  }
  verify(captured.trace);
  Graph graph = rank_graph(captured_graph(captured.trace), strategy, options.target.features, options.fp8);
  keep_parameters(strategy, graph);
  return graph;
}

BatchCut cut_in_time(const VirtualPlan& captured, int64_t micro_batches, KernelSources& kernels,
                     CompileOptions& options) {
  const Mesh mesh = options.strategy.mesh;
  options.strategy.mesh.axes.push_back({std::string(kMicroBatchAxis), micro_batches});
  const Graph graph = rank_graph_of(captured, kernels, options);
  options.strategy.mesh = mesh;
  return cut_batch(graph, options.strategy.zero);
}

StageCuts::StageCuts(const Pipeline& pipeline) : order_(order_of(pipeline)), begins_(pipeline.stages) {}

StagePlaces StageCuts::places_of(const Graph& graph) {
  if (begins_.empty()) begins_ = with_key("parallel.pp", [&] { return balanced_stages(graph, order_.stages); });
  StagePlaces places = with_key("parallel.stages", [&] { return place_nodes(graph, begins_); });
  if (holders_.empty()) holders_ = places.of_parameter;
  for (const auto& [key, stages] : places.of_parameter) {
    const auto known = holders_.find(key);
    for (const int64_t stage : stages)
      USER_CHECK(known != holders_.end() && std::ranges::find(known->second, stage) != known->second.end(),
                 "stage {} takes the parameter '{}', which the first step that ran does not have there: call a "
                 "training step first",
                 stage, key);
  }
  return places;
}

StageParts StageCuts::micro_batch(const Graph& graph) {
  const StagePlaces places = places_of(graph);
  StageParts parts{cut_micro_batch(graph, places, order_.splits_backward()), {}};
  parts.program = with_key("parallel.order", [&] { return make_program(parts.cut, order_); });
  return parts;
}

RecomputeResult StageCuts::recomputed(const Graph& graph, const RecomputeOptions& options) {
  return recompute_stages(graph, places_of(graph), options);
}

StageParts StageCuts::forward(const Graph& graph, int64_t micro_batches) {
  const StagePlaces places = places_of(graph);
  StageParts parts{cut_micro_batch(graph, places), {}};
  parts.program = make_program(parts.cut, forward_order(order_, micro_batches));
  return parts;
}

std::vector<StageParts> StageCuts::updates(const BatchCut& cut, const std::vector<StageParts>& micro_batches,
                                           StageHolders& sums) const {
  StageHolders on = holders();  // what belongs to no parameter is updated once on each
  sums = holders_of_sums(cut, micro_batches, on);
  on.insert(sums.begin(), sums.end());
  std::vector<StageParts> updates;
  for (const BatchCut::Round& round : cut.rounds) {
    const bool is_last = &round == &cut.rounds.back();
    StageParts& parts = updates.emplace_back();
    parts.cut = cut_update(round.update, ranks(), on, is_last ? cut.reads : std::vector<StageRead>());
    parts.program = make_program(parts.cut, ranks());
  }
  return updates;
}

StageHolders StageCuts::holders() const {
  StageHolders on;
  for (const auto& [key, stages] : holders_) on[key] = ranks_of(stages, order_);
  return on;
}

bool StageCuts::saves(int64_t rank, Owner owner, const std::string& key) const {
  const InputKind kind = owner == Owner::kParameter        ? InputKind::kParameter
                         : owner == Owner::kOptimizerState ? InputKind::kOptimizerState
                                                           : InputKind::kBuffer;
  const std::vector<int64_t>* of = holders_of(kind, key, holders_);
  return (of == nullptr ? 0 : ranks_of(*of, order_).front()) == rank;
}

}  // namespace stepc
