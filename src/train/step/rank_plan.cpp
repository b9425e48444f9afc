#include "train/step/rank_plan.h"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "base/text.h"
#include "comm/ranks.h"
#include "engine/plan/compile.h"
#include "engine/ranks/sharded_state.h"
#include "engine/ranks/stage_budget.h"
#include "engine/ranks/stage_cuts.h"
#include "engine/ranks/stage_ranks.h"
#include "ops/communication.h"
#include "passes/partition/partition.h"
#include "passes/partition/shardings/sharding_report.h"
#include "plan/step_state.h"
#include "runtime/kernel_sources.h"
#include "train/config/parallel.h"
#include "train/machine/kernel_directory.h"
#include "train/step/model_slices.h"

namespace stepc::train {

namespace {

// What a step does of one captured part.
struct PlannedParts {
  StageParts parts;
  std::vector<RankPart> functions;
  std::vector<Schedule> schedules;  // by function
  ProgramTimeline timeline;
};

class StagePlanner {
 public:
  StagePlanner(const RunConfig& config, const Strategy& strategy)
      : kernels_(kernel_directory()),
        known_(known_target(kernel_directory(), features_of(kernels_.micro_kernels),
                            static_cast<int>(config.train.threads))) {
    options_.target = known_.target;
    options_.budget = parse_memory_budget(config.memory.budget);
    options_.strategy = strategy;
    options_.fp8 = config.train.fp8();
    options_.strategy.mesh = without_stages(strategy.mesh);
  }

  KernelSources& kernels() { return kernels_; }
  CompileOptions& options() { return options_; }
  [[nodiscard]] bool is_calibrated() const { return known_.is_calibrated; }

  // A step that was captured whole: one function of the only stage.
  PlannedParts whole(const CapturedPart& captured) {
    PlannedParts out;
    out.parts.cut.functions.push_back({.name = captured.name});
    out.parts.program.functions.push_back({captured.name, 0, {}, {}});
    out.parts.program.calls.emplace_back();
    out.timeline.seconds = add(out, captured.name, captured.times, captured.plan.trace, options_).seconds;
    return out;
  }
  // `held`: by rank along pp, of the program's tensors.
  PlannedParts plan(StageParts parts, int64_t times, const std::vector<uint64_t>& held, const MemoryBudget& budget) {
    PlannedParts out{std::move(parts), {}, {}, {}};
    std::vector<double> seconds;
    for (const StageFunction& function : out.parts.cut.functions) {
      CompileOptions own = options_;
      own.function = &function.graph;
      const auto f = static_cast<size_t>(&function - out.parts.cut.functions.data());
      const int64_t rank = out.parts.program.functions[f].rank;
      own.budget = budget_of_function(budget, function.graph,
                                      held.at(static_cast<size_t>(rank)) + between_bytes(out.parts, rank));
      seconds.push_back(add(out, function.name, times, {}, own).seconds);
    }
    const Rates& rates = known_.target.rates;
    out.timeline = simulate(out.parts.program, seconds, [&](const StageCall& send) {
      return rates.link_latency_seconds +
             static_cast<double>(sent_bytes(out.parts, send)) / rates.link_bytes_per_second;
    });
    return out;
  }

  // What the first of the ranks at that place along pp has.
  [[nodiscard]] ShardedState state_of(const std::vector<PlannedParts>& planned, int64_t rank) const {
    ShardedState state(options_.strategy.mesh, Ranks::threads(1)[0]);
    for (const PlannedParts& one : planned)
      for (size_t f = 0; f < one.schedules.size(); ++f)
        if (one.parts.program.functions[f].rank == rank) state.add(one.schedules[f]);
    return state;
  }
  // Of its functions and what lies between them.
  static uint64_t step_bytes(const PlannedParts& planned, int64_t rank) {
    uint64_t bytes = 0;
    for (size_t f = 0; f < planned.schedules.size(); ++f)
      if (planned.parts.program.functions[f].rank == rank) bytes = std::max(bytes, planned.schedules[f].peak_bytes());
    return bytes + between_bytes(planned.parts, rank);
  }

 private:
  Prediction add(PlannedParts& out, const std::string& name, int64_t times, const Trace& trace,
                 const CompileOptions& options) {
    PlannedGraph planned = plan_fast(trace, kernels_, options);
    if (options_.strategy.context == Context::kByPrice) options_.strategy.context = planned.context;
    const Prediction prediction = predict(planned.plan.schedule, known_);
    out.schedules.push_back(std::move(planned.plan.schedule));
    out.functions.push_back({name, times, std::move(planned.graph), std::move(planned.plan.memory), prediction});
    return prediction;
  }

  KernelSources kernels_;
  KnownTarget known_;
  CompileOptions options_;
};

const RankPart& larger_function(const StagePlan& stage) {
  return *std::ranges::max_element(stage.parts, {}, [](const RankPart& part) { return part.memory.peak_bytes; });
}

}  // namespace

uint64_t StagePlan::step_bytes() const {
  uint64_t bytes = 0;
  for (const RankPart& part : parts) bytes = std::max(bytes, part.memory.arena_bytes);
  return bytes + between_bytes;
}

const StagePlan& RankPlan::largest() const { return *std::ranges::max_element(stages, {}, &StagePlan::bytes); }

namespace {

// What micro-batches do, and what is done once for all of them.
std::vector<PlannedParts> plan_parts(const std::vector<CapturedPart>& captured, StagePlanner& planner,
                                     StageCuts& cuts) {
  std::vector<PlannedParts> planned;
  const RankGraphs graphs = rank_graphs(captured, planner.kernels(), planner.options());
  plan_within(graphs.micro_batch, cuts, planner.options(), [&](StageParts micro, const MemoryBudget& budget) {
    std::vector<StageParts> parts = {std::move(micro)};
    for (const Graph& update : graphs.updates) parts.push_back(cuts.update(update));
    std::vector<const StageParts*> all;
    for (const StageParts& one : parts) all.push_back(&one);
    std::vector<uint64_t> held;
    for (int64_t rank = 0; rank < cuts.ranks(); ++rank) held.push_back(held_bytes(all, rank));
    planned.clear();
    for (size_t p = 0; p < parts.size(); ++p)
      planned.push_back(planner.plan(std::move(parts[p]), captured[p].times, held, budget));
    StageCost cost{0, planned[0].timeline.seconds};
    for (int64_t rank = 0; rank < cuts.ranks(); ++rank)
      for (const PlannedParts& one : planned)
        cost.bytes = std::max(cost.bytes, held[static_cast<size_t>(rank)] + StagePlanner::step_bytes(one, rank));
    return cost;
  });
  return planned;
}

}  // namespace

RankPlan plan_rank(const std::vector<CapturedPart>& captured, const RunConfig& config, const Strategy& strategy,
                   const ModelDirectory& directory, const models::Decoder& model, const ChosenOptimizer& optimizer) {
  StagePlanner planner(config, strategy);
  StageCuts cuts(pipeline_of(config));
  std::vector<PlannedParts> planned;
  if (captured.size() == 1)
    planned.push_back(planner.whole(captured[0]));
  else
    planned = plan_parts(captured, planner, cuts);
  RankPlan out{strategy, config.parallel.order};
  if (cuts.ranks() > 1) out.waits = planned[0].timeline.idle_share();
  out.strategy.context = planner.options().strategy.context;
  out.prediction.is_calibrated = planner.is_calibrated();
  // Each gradient of a step takes all micro-batches.
  const int64_t gradients = captured.size() == 1 ? 1 : captured[0].times / config.train.micro_batches;
  for (size_t p = 0; p < planned.size(); ++p)
    out.prediction.seconds += planned[p].timeline.seconds * static_cast<double>(p == 0 ? gradients : 1);
  for (int64_t rank = 0; rank < cuts.ranks(); ++rank) {
    StagePlan& stage = out.stages.emplace_back();
    for (size_t s = 0; s < cuts.begins().size(); ++s)
      if (cuts.order().rank_of(static_cast<int64_t>(s)) == rank) stage.begins.push_back(cuts.begins()[s]);
    StepState held;
    for (const PlannedParts& part : planned) {
      for (size_t f = 0; f < part.functions.size(); ++f)
        if (part.parts.program.functions[f].rank == rank) {
          held.merge(state_of(part.functions[f].graph));
          stage.parts.push_back(part.functions[f]);
          if (cuts.ranks() == 1) stage.parts.back().name = captured[static_cast<size_t>(&part - planned.data())].name;
        }
      stage.between_bytes = std::max(stage.between_bytes, between_bytes(part.parts, rank));
      const auto times = static_cast<double>(&part == planned.data() ? gradients : 1);
      for (const StageCall& call : part.parts.program.calls[static_cast<size_t>(rank)])
        if (call.kind == StageCall::Kind::kSend)
          stage.sent_bytes += times * static_cast<double>(sent_bytes(part.parts, call));
    }
    stage.state_bytes = bytes_of(held);
    if (cuts.ranks() > 1) stage.waits = planned[0].timeline.idle_share(rank);
    const ShardedState state = planner.state_of(planned, rank);
    const SavesFn saves = [&](Owner owner, const std::string& key) { return cuts.saves(rank, owner, key); };
    stage.copies = copies_need(config, weight_slices(directory, model, state, saves),
                               state_slices(optimizer, state, saves), state);
  }
  return out;
}

namespace {

// Its exchanges hide behind nothing but its own work.
std::string time_of_one_stage(const RankPlan& plan) {
  Prediction sum = plan.prediction;
  for (const RankPart& part : plan.stages[0].parts) {
    sum.exchange_seconds += part.prediction.exchange_seconds * static_cast<double>(part.times);
    sum.exposed_seconds += part.prediction.exposed_seconds * static_cast<double>(part.times);
  }
  return str("predicted time  {}\nof it in exchanges {}, while nothing else runs {}\n", to_text(sum),
             time_text(sum.exchange_seconds), time_text(sum.exposed_seconds));
}

std::string time_of_stages(const RankPlan& plan) {
  std::string out = str("predicted time  {}\n", to_text(plan.prediction));
  out += str("in the order \"{}\" the ranks wait {:.1f} % of the micro-batches' time\n", plan.order, 100 * plan.waits);
  out += str("  {:<5} {:>20} {:>10} {:>16} {:>18} {:>6}  {}\n", "rank", "model and optimizer", "step", "of it between",
             "sent to stages", "waits", "begins with");
  for (size_t r = 0; r < plan.stages.size(); ++r) {
    const StagePlan& stage = plan.stages[r];
    out += str("  {:<5} {:>20} {:>10} {:>16} {:>18} {:>4.0f} %  {}\n", r, human_bytes(stage.state_bytes),
               human_bytes(stage.step_bytes()), human_bytes(stage.between_bytes),
               human_bytes(static_cast<uint64_t>(stage.sent_bytes)), 100 * stage.waits, fmt::join(stage.begins, ", "));
  }
  return out;
}

}  // namespace

std::string to_text(const RankPlan& plan) {
  const StagePlan& most = plan.largest();
  const bool is_pipeline = plan.stages.size() > 1;
  std::string out = str("one of {}\n", to_text(plan.strategy));
  if (is_pipeline)
    out += str("of rank {} along pp, which takes most, {}:\n", &most - plan.stages.data(), larger_function(most).name);
  out += to_text(larger_function(most).memory);
  const Mesh mesh = without_stages(plan.strategy.mesh);
  if (!is_pipeline || !mesh.axes.empty())
    for (const RankPart& part : most.parts)
      out += to_text(communication_of(part.graph), mesh,
                     most.parts.size() == 1 ? "it sends" : str("{}, {} a step, sends", part.name, part.times));
  out += to_text(padded_inputs(most.parts.front().graph));  // the batch, and parameters as all functions have them
  out += is_pipeline ? time_of_stages(plan) : time_of_one_stage(plan);
  out +=
      str("a rank takes {}: model and optimizer {}, step {}, {}the program itself aside\n", human_bytes(most.bytes()),
          human_bytes(most.state_bytes), human_bytes(most.step_bytes()), to_text(most.copies));
  return out;
}

std::string memory_svg(const RankPlan& plan) {
  return timeline_svg(larger_function(plan.largest()).memory, plan.stages.size() > 1
                                                                  ? "live bytes of a stage's function on one rank"
                                                                  : "live bytes of a training step on one rank");
}

}  // namespace stepc::train
