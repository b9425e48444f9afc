#include "train/step/rank_plan.h"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "base/text.h"
#include "comm/ranks.h"
#include "cost/profile.h"
#include "engine/plan/compile.h"
#include "engine/ranks/sharded_state.h"
#include "engine/ranks/stage_budget.h"
#include "engine/ranks/stage_cuts.h"
#include "engine/ranks/stage_ranks.h"
#include "ops/communication.h"
#include "passes/partition/partition.h"
#include "passes/partition/shardings/sharding_report.h"
#include "plan/stages/simulate_program.h"
#include "plan/step_state.h"
#include "runtime/kernel_sources.h"
#include "train/config/parallel.h"
#include "train/machine/kernel_directory.h"
#include "train/step/model_slices.h"

namespace stepc::train {

namespace {

// The functions of a step in one piece, of the micro-batches of a round, or of its update.
struct PlannedParts {
  std::string name;
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

  // A step in one piece, on the only stage.
  PlannedParts whole(const VirtualPlan& captured) {
    PlannedParts out = on_all("the step", 1);
    out.timeline.seconds = add(out, out.name, 1, captured.trace, options_).seconds;
    return out;
  }
  // A function that every rank runs this often.
  PlannedParts everywhere(const std::string& name, const Graph& graph, int64_t times, int64_t ranks) {
    PlannedParts out = on_all(name, ranks);
    CompileOptions own = options_;
    own.budget = {};
    own.function = &graph;
    for (int64_t rank = 0; rank < ranks; ++rank)
      out.timeline.seconds = add(out, name, times, {}, own).seconds * static_cast<double>(times);
    return out;
  }
  // `held`: by rank along pp, of the program's tensors.
  PlannedParts plan(const std::string& name, StageParts parts, int64_t times, const std::vector<uint64_t>& held,
                    const MemoryBudget& budget) {
    PlannedParts out{name, std::move(parts), {}, {}, {}};
    std::vector<double> seconds;
    for (const StageFunction& function : out.parts.cut.functions) {
      CompileOptions own = options_;
      own.function = &function.graph;
      const auto f = static_cast<size_t>(&function - out.parts.cut.functions.data());
      const int64_t rank = out.parts.program.functions[f].rank;
      own.budget = budget_of_function(budget, function.graph,
                                      held.at(static_cast<size_t>(rank)) + between_bytes(out.parts, rank));
      const bool is_only = out.parts.program.ranks() == 1 && out.parts.cut.functions.size() == 1;
      seconds.push_back(add(out, is_only ? name : function.name, times, {}, own).seconds);
    }
    const Rates& rates = known_.target.rates;
    out.timeline = simulate(out.parts.program, seconds, [&](const StageCall& send) {
      return rates.link_latency_seconds +
             static_cast<double>(sent_bytes(out.parts, send)) / rates.link_bytes_per_second;
    });
    return out;
  }

  // The state of the first rank at that place along pp.
  [[nodiscard]] ShardedState state_of(const std::vector<PlannedParts>& planned, int64_t rank) const {
    ShardedState state(options_.strategy.mesh, Ranks::threads(1)[0]);
    for (const PlannedParts& one : planned)
      for (size_t f = 0; f < one.schedules.size(); ++f)
        if (one.parts.program.functions[f].rank == rank) state.add(one.schedules[f]);
    return state;
  }
  // The bytes of a rank's functions and of the values between them.
  static uint64_t step_bytes(const PlannedParts& planned, int64_t rank) {
    uint64_t bytes = 0;
    for (size_t f = 0; f < planned.schedules.size(); ++f)
      if (planned.parts.program.functions[f].rank == rank) bytes = std::max(bytes, planned.schedules[f].peak_bytes());
    return bytes + between_bytes(planned.parts, rank);
  }

 private:
  static PlannedParts on_all(const std::string& name, int64_t ranks) {
    PlannedParts out{name, {}, {}, {}, {}};
    for (int64_t rank = 0; rank < ranks; ++rank) {
      out.parts.cut.functions.push_back({.name = name});
      out.parts.program.functions.push_back({name, rank, {}, {}});
    }
    out.parts.program.calls.resize(static_cast<size_t>(ranks));
    out.parts.program.slots.resize(static_cast<size_t>(ranks));
    return out;
  }
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

// Returns the parts of a step; the first one has the passes.
std::vector<PlannedParts> plan_parts(const VirtualPlan& captured, int64_t micro_batches, StagePlanner& planner,
                                     StageCuts& cuts) {
  const BatchCut cut = cut_in_time(captured, micro_batches, planner.kernels(), planner.options());
  const bool is_twice = cut.rounds.size() > 1;
  std::vector<PlannedParts> step;
  plan_within(cut, cuts, planner.options(), [&](std::vector<StageParts> passes, const MemoryBudget& budget) {
    StageHolders sums;
    std::vector<StageParts> updates = cuts.updates(cut, passes, sums);
    std::vector<const StageParts*> all;
    for (const std::vector<StageParts>* some : {&passes, &updates})
      for (const StageParts& one : *some) all.push_back(&one);
    std::vector<uint64_t> held;
    for (int64_t rank = 0; rank < cuts.ranks(); ++rank) held.push_back(held_bytes(all, rank));
    step.clear();
    StageCost cost;
    for (size_t round = 0; round < cut.rounds.size(); ++round) {
      const bool is_last = round + 1 == cut.rounds.size();
      step.push_back(planner.plan(round == 0 ? "a micro-batch" : "a micro-batch uphill", std::move(passes[round]),
                                  micro_batches, held, budget));
      cost.seconds += step.back().timeline.seconds;
      step.push_back(planner.plan(is_twice && !is_last ? "the way uphill" : "the update", std::move(updates[round]), 1,
                                  held, budget));
    }
    for (int64_t rank = 0; rank < cuts.ranks(); ++rank)
      for (const PlannedParts& one : step)
        cost.bytes = std::max(cost.bytes, held[static_cast<size_t>(rank)] + StagePlanner::step_bytes(one, rank));
    return cost;
  });
  for (const Graph& graph : cut.before)
    step.push_back(planner.everywhere("a count of its rows", graph, micro_batches, cuts.ranks()));
  return step;
}

}  // namespace

RankPlan plan_rank(const CapturedRun& run, const RunConfig& config, const Strategy& strategy,
                   const ModelDirectory& directory) {
  StagePlanner planner(config, strategy);
  StageCuts cuts(pipeline_of(config));
  std::vector<PlannedParts> step;
  if (is_cut(config))
    step = plan_parts(run.step, config.train.micro_batches, planner, cuts);
  else
    step.push_back(planner.whole(run.step));
  RankPlan out{strategy, config.parallel.order};
  if (cuts.ranks() > 1) out.waits = step[0].timeline.idle_share();
  out.strategy.context = planner.options().strategy.context;
  out.prediction.is_calibrated = planner.is_calibrated();
  for (const PlannedParts& part : step) out.prediction.seconds += part.timeline.seconds;
  for (int64_t rank = 0; rank < cuts.ranks(); ++rank) {
    StagePlan& stage = out.stages.emplace_back();
    for (size_t s = 0; s < cuts.begins().size(); ++s)
      if (cuts.order().rank_of(static_cast<int64_t>(s)) == rank) stage.begins.push_back(cuts.begins()[s]);
    StepState held;
    for (const PlannedParts& part : step) {
      for (size_t f = 0; f < part.functions.size(); ++f)
        if (part.parts.program.functions[f].rank == rank) {
          held.merge(state_of(part.functions[f].graph));
          stage.parts.push_back(part.functions[f]);
        }
      stage.between_bytes = std::max(stage.between_bytes, between_bytes(part.parts, rank));
      for (const StageCall& call : part.parts.program.calls[static_cast<size_t>(rank)])
        if (call.kind == StageCall::Kind::kSend) stage.sent_bytes += static_cast<double>(sent_bytes(part.parts, call));
    }
    stage.state_bytes = bytes_of(held);
    if (cuts.ranks() > 1) stage.waits = step[0].timeline.idle_share(rank);
    const ShardedState state = planner.state_of(step, rank);
    const SavesFn saves = [&](Owner owner, const std::string& key) { return cuts.saves(rank, owner, key); };
    stage.copies = copies_need(config, weight_slices(directory, run.model, state, saves),
                               state_slices(run.optimizer, state, saves), state);
  }
  return out;
}

namespace {

// A rank's exchanges hide only behind its own work.
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
