#include "plan/search_stages.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "cost/exchange.h"
#include "passes/partition/partition.h"
#include "passes/stages/cut_stages.h"
#include "passes/stages/place_nodes.h"
#include "passes/stages/recompute_stages.h"
#include "plan/rank_graph.h"
#include "plan/stages/price_pipeline.h"

namespace stepc {

namespace {

constexpr std::array kQuantities = {&StageTaken::forward_seconds,
                                    &StageTaken::input_seconds,
                                    &StageTaken::weight_seconds,
                                    &StageTaken::exchange_seconds,
                                    &StageTaken::exposed_seconds,
                                    &StageTaken::compute_seconds,
                                    &StageTaken::forward_compute_seconds,
                                    &StageTaken::input_compute_seconds,
                                    &StageTaken::weight_compute_seconds,
                                    &StageTaken::update_seconds,
                                    &StageTaken::update_exchange_seconds,
                                    &StageTaken::update_exposed_seconds,
                                    &StageTaken::update_compute_seconds,
                                    &StageTaken::balance_seconds,
                                    &StageTaken::held_bytes,
                                    &StageTaken::onward_bytes,
                                    &StageTaken::state_bytes,
                                    &StageTaken::step_bytes};

// Which of the stages that are planned stands for a stage.
size_t shown_for(int64_t stage, int64_t stages, size_t shown) {
  if (stage == stages - 1) return shown - 1;
  return stage == 0 ? 0 : 1;
}

// The largest function; what it gives is held.
double most_bytes(const std::vector<LayerMemory>& functions, double more_layers) {
  double most = 0;
  for (const LayerMemory& memory : functions) most = std::max(most, memory.arena_bytes(more_layers));
  return most;
}

StageTaken with_layers(const StagesTaken& shallow, const StagesTaken& deep, int64_t stage, int64_t stages,
                       int64_t layers) {
  const size_t shown = shown_for(stage, stages, shallow.size());
  StageTaken out;
  for (double StageTaken::*quantity : kQuantities)
    out.*quantity = std::max(0.0, of_depth(shallow[shown].*quantity, deep[shown].*quantity, layers));
  out.layers = layers;
  out.step_bytes = most_bytes((layers < kDeep ? shallow : deep)[shown].functions, more_layers(layers));
  return out;
}

// What leaves a function, by where it is read.
void count_values(const StageCut& cut, StagesTaken& taken) {
  for (const StageValue& value : cut.values) {
    const StageFunction& maker = cut.functions[value.maker];
    StageTaken& stage = taken[static_cast<size_t>(maker.stage)];
    const auto bytes = static_cast<double>(bytes_of(value.type));
    const auto is_read = [&](const auto& by) {
      return std::ranges::any_of(value.users, [&](uint32_t user) { return by(cut.functions[user].stage); });
    };
    if (is_read([&](int64_t user) { return user == maker.stage; })) stage.held_bytes += bytes;
    if (is_read([&](int64_t user) { return user > maker.stage; })) stage.onward_bytes += bytes;
  }
}

}  // namespace

BatchCut cut_in_time(const Graph& step, int64_t micro_batches, Strategy& strategy, const Features& features,
                     const std::optional<Fp8Recipe>& fp8) {
  Strategy in_time = strategy;
  in_time.mesh.axes.push_back({std::string(kMicroBatchAxis), micro_batches});
  const Graph local = rank_graph(step, in_time, features, fp8);
  keep_parameters(strategy, local);
  return cut_batch(local, strategy.zero);
}

StepCut cut_layers(BatchCut cut, int64_t stages, int64_t layers, bool splits_backward,
                   const RecomputeOptions* recompute) {
  USER_CHECK(cut.rounds.size() == 1, "a step of two gradients is not searched in stages");
  Graph& graph = cut.rounds[0].micro_batch;
  const std::vector<std::string> modules = layer_modules(graph);
  USER_CHECK(std::ssize(modules) == stages * layers, "{} modules of the model are layers, and it has {} layers",
             modules.size(), stages * layers);
  std::vector<std::string> begins;
  for (int64_t s = 0; s < stages; ++s) begins.push_back(modules[static_cast<size_t>(s * layers)]);
  if (recompute != nullptr) graph = recompute_stages(graph, place_nodes(graph, begins), *recompute).graph;
  const StagePlaces places = place_nodes(graph, begins);
  // What is held for a parameter is where that is.
  std::map<std::string, std::vector<int64_t>> holders = places.of_parameter;
  StageCut passes = cut_micro_batch(graph, places, splits_backward);
  for (const StageFunction& function : passes.functions)
    for (const GraphInput& input : function.graph.inputs)
      if (input.kind == InputKind::kGradient) {
        std::vector<int64_t>& on = holders[input.key];
        if (std::ranges::find(on, function.stage) == on.end()) on.push_back(function.stage);
      }
  for (auto& [key, on] : holders) std::ranges::sort(on);
  return {std::move(cut.before), std::move(passes), cut_update(cut.rounds[0].update, stages, holders)};
}

StagesTaken take_stages(const StepCut& cut, int64_t stages, int64_t micro_batches, PlanGraphOptions options,
                        PartPlans& plans) {
  leave_out_what_is_done(options.passes);
  StagesTaken out(static_cast<size_t>(stages));
  std::vector<StepState> state(out.size());
  const auto plan_functions = [&](const StageCut& part) {
    for (const StageFunction& function : part.functions) {
      const PartPlan planned = plans.plan(function.graph, options);
      const auto s = static_cast<size_t>(function.stage);
      StageTaken& stage = out[s];
      state[s].merge(StepState(planned.state));
      stage.functions.push_back(planned.taken.memory);
      const bool is_update = function.phase == Phase::kUpdate;
      (is_update ? stage.update_exchange_seconds : stage.exchange_seconds) += planned.taken.exchange_seconds;
      (is_update ? stage.update_exposed_seconds : stage.exposed_seconds) += planned.taken.exposed_seconds;
      (is_update ? stage.update_compute_seconds : stage.compute_seconds) += planned.taken.compute_seconds;
      for (const Node& node : function.graph.nodes)
        if (!is_update) stage.balance_seconds += seconds_of(function.graph, node, Target());
      if (is_update) {
        stage.update_seconds += planned.taken.seconds;
      } else if (function.phase == Phase::kForward) {
        stage.forward_seconds = planned.taken.seconds;
        stage.forward_compute_seconds = planned.taken.compute_seconds;
      } else {
        (function.is_of_weights ? stage.weight_seconds : stage.input_seconds) = planned.taken.seconds;
        (function.is_of_weights ? stage.weight_compute_seconds : stage.input_compute_seconds) =
            planned.taken.compute_seconds;
      }
    }
  };
  count_values(cut.micro_batch, out);
  plan_functions(cut.micro_batch);
  plan_functions(cut.update);
  for (const Graph& graph : cut.before) {
    const double seconds = plans.plan(graph, options).taken.seconds * static_cast<double>(micro_batches);
    for (StageTaken& stage : out) stage.update_seconds += seconds;  // on all ranks, as the update
  }
  for (size_t s = 0; s < out.size(); ++s) {
    out[s].state_bytes = static_cast<double>(bytes_of(state[s]));
    out[s].step_bytes = most_bytes(out[s].functions, 0);
  }
  return out;
}

std::vector<int64_t> layers_of_stages(const StagesTaken& shallow, const StagesTaken& deep, int64_t stages,
                                      int64_t layers) {
  INTERNAL_CHECK_LE(stages, layers, "layers of stages");
  std::vector<int64_t> of_stage(static_cast<size_t>(stages), 1);
  const auto seconds_with = [&](int64_t stage, int64_t count) {
    return with_layers(shallow, deep, stage, stages, count).balance_seconds;
  };
  std::vector<double> with_one_more;
  for (int64_t s = 0; s < stages; ++s) with_one_more.push_back(seconds_with(s, 2));
  // Layers are equal, so each goes where the stage then takes least.
  for (int64_t layer = stages; layer < layers; ++layer) {
    const auto s = static_cast<size_t>(std::ranges::min_element(with_one_more) - with_one_more.begin());
    with_one_more[s] = seconds_with(static_cast<int64_t>(s), ++of_stage[s] + 1);
  }
  return of_stage;
}

StagesTaken between(const StagesTaken& from, const StagesTaken& to, double share) {
  StagesTaken out = from;
  for (size_t s = 0; s < out.size(); ++s)
    for (double StageTaken::*quantity : kQuantities) out[s].*quantity += share * (to[s].*quantity - from[s].*quantity);
  return out;
}

StagesTaken with_all_layers(const StagesTaken& shallow, const StagesTaken& deep, const std::vector<int64_t>& layers) {
  StagesTaken out;
  for (const int64_t of_stage : layers)
    out.push_back(with_layers(shallow, deep, std::ssize(out), std::ssize(layers), of_stage));
  return out;
}

std::vector<double> compute_seconds_of(const StagesTaken& stages) {
  std::vector<double> seconds;
  for (const StageTaken& stage : stages) seconds.push_back(stage.compute_seconds);
  return seconds;
}

double least_seconds_of(const StagesTaken& stages, const SearchPins& pins, const Candidate& way) {
  const StageOrder order = stage_order(pins.order, way.pp, way.micro_batches, pins.chunks);
  std::vector<StageCost> costs;
  std::vector<double> updates(static_cast<size_t>(way.pp), 0);
  for (size_t s = 0; s < stages.size(); ++s) {
    costs.push_back(
        {stages[s].forward_compute_seconds, stages[s].input_compute_seconds, stages[s].weight_compute_seconds});
    updates[static_cast<size_t>(order.rank_of(static_cast<int64_t>(s)))] += stages[s].update_compute_seconds;
  }
  return price_pipeline(costs, order).seconds + std::ranges::max(updates);
}

void sum_up_stages(const StagesTaken& stages, const Cluster& cluster, const SearchPins& pins, Outcome& outcome) {
  const Candidate& way = outcome.candidate;
  const Mesh mesh = strategy_of(way, {}).mesh;
  std::vector<StageCost> costs;
  for (const StageTaken& one : stages) {
    Exchange message;
    if (const auto pp = mesh.find("pp"))
      message = exchange(cluster.target.rates, mesh, Collective::kRotate, {{}, {*pp}, 1, 1, one.onward_bytes, 0});
    costs.push_back({one.forward_seconds, one.input_seconds, one.weight_seconds,
                     message.bytes_seconds + message.latency_seconds, static_cast<uint64_t>(one.held_bytes),
                     static_cast<uint64_t>(one.step_bytes), static_cast<uint64_t>(one.state_bytes)});
  }
  const StageOrder order = stage_order(pins.order, way.pp, way.micro_batches, pins.chunks);
  const PipelinePrice priced = price_pipeline(costs, order);
  const auto micro_batches = static_cast<double>(way.micro_batches);
  double update = 0;
  uint64_t most_bytes = 0;
  outcome.exchange_seconds = outcome.exposed_seconds = 0;
  for (int64_t rank = 0; rank < way.pp; ++rank) {
    StageTaken sum;
    for (size_t s = 0; s < stages.size(); ++s)
      if (order.rank_of(static_cast<int64_t>(s)) == rank)
        for (double StageTaken::*quantity : kQuantities) sum.*quantity += stages[s].*quantity;
    update = std::max(update, sum.update_seconds);
    outcome.exchange_seconds =
        std::max(outcome.exchange_seconds, micro_batches * sum.exchange_seconds + sum.update_exchange_seconds);
    outcome.exposed_seconds =
        std::max(outcome.exposed_seconds, micro_batches * sum.exposed_seconds + sum.update_exposed_seconds);
    const uint64_t bytes = priced.bytes[static_cast<size_t>(rank)];
    if (bytes <= most_bytes) continue;
    most_bytes = bytes;
    outcome.state_bytes = std::min(bytes, static_cast<uint64_t>(sum.state_bytes));
    outcome.step_bytes = bytes - outcome.state_bytes;
  }
  outcome.seconds = priced.seconds + update;
  outcome.waiting_seconds = priced.seconds * priced.bubble;
}

}  // namespace stepc
