#include "engine/ranks/choose_mesh.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/json.h"
#include "base/machine_memory.h"
#include "base/text.h"
#include "cost/profile.h"
#include "engine/ranks/stage_cuts.h"
#include "passes/partition/partition.h"
#include "passes/stages/cut_batch.h"
#include "passes/stages/place_nodes.h"
#include "plan/plan_graph.h"
#include "plan/rank_graph.h"
#include "plan/search.h"
#include "plan/search_text.h"

namespace stepc {

namespace {

constexpr size_t kShownWays = 5;

std::optional<int64_t> pinned(const Parallel& parallel, std::string_view axis) {
  const auto found = std::ranges::find(parallel.axes, axis, &MeshAxis::name);
  return found == parallel.axes.end() || found->size == -1 ? std::nullopt : std::optional(found->size);
}

// Cuts the step as StagedStep does.
StepCut cut_step(const Graph& captured, const Parallel& parallel, const Candidate& way,
                 const std::optional<Fp8Recipe>& fp8, Strategy& strategy, const Features& features,
                 const RecomputeOptions* recompute) {
  Strategy in_time = strategy;
  in_time.mesh.axes.push_back({std::string(kMicroBatchAxis), way.micro_batches});
  const Graph local = rank_graph(captured, in_time, features, fp8);
  keep_parameters(strategy, local);
  BatchCut cut = cut_batch(local, strategy.zero);
  StageCuts cuts({way.pp, way.micro_batches, parallel.stages, parallel.order, parallel.chunks});
  USER_CHECK(cut.rounds.size() == 1, "a step of two gradients is not searched in micro-batches");
  Graph& graph = cut.rounds[0].micro_batch;
  const bool trains = is_training(graph);
  if (trains && recompute != nullptr) graph = cuts.recomputed(graph, *recompute).graph;
  const std::vector<StageParts> passes = {trains ? cuts.micro_batch(graph) : cuts.forward(graph, way.micro_batches)};
  StageHolders sums;
  std::vector<StageParts> updates = cuts.updates(cut, passes, sums);
  return {std::move(cut.before), passes[0].cut, std::move(updates[0].cut)};
}

SearchResult search_here(const Trace& captured, const Parallel& parallel, const Strategy& base, int64_t rows,
                         const std::optional<Fp8Recipe>& fp8, const Cluster& cluster) {
  SearchModel model;
  model.heads = cluster.devices();  // who cannot be split so, the plan says
  model.rows = rows;
  model.fp8 = fp8;
  const Graph graph = captured_graph(captured);
  model.most_stages = std::ssize(layer_modules(graph));
  model.capture = [&](int64_t, bool) { return graph; };
  model.cut = [&](const Candidate& way, Strategy& strategy, const RecomputeOptions* recompute) {
    return cut_step(graph, parallel, way, fp8, strategy, cluster.target.features, recompute);
  };
  SearchOptions options;
  options.top = kShownWays;
  options.pins = {.pp = pinned(parallel, "pp"),
                  .dp_replicate = pinned(parallel, "dp_replicate"),
                  .dp_shard = pinned(parallel, "dp_shard"),
                  .cp = pinned(parallel, "cp").value_or(1),
                  .tp = pinned(parallel, "tp"),
                  .order = parallel.order,
                  .chunks = parallel.chunks,
                  .base = base};
  SearchPins& pins = options.pins;
  if (parallel.zero > 0) pins.zero = parallel.zero;
  if (parallel.micro_batches > 1 || parallel.means_by_rank) pins.micro_batches = parallel.micro_batches;
  if (parallel.batch == Parallel::Batch::kLocal) {
    const bool splits_rows_alone = pins.pp.value_or(1) == 1 && pins.cp == 1 && pins.tp.value_or(1) == 1;
    USER_CHECK(
        splits_rows_alone,
        "parallel is \"auto\" with cp, tp or pp, along which ranks have the same rows: give batch=\"global\", the "
        "whole batch on every rank");
    pins.tp = pins.pp = 1;
  }
  if (!parallel.stages.empty() || parallel.chunks > 1)
    USER_CHECK(pins.pp.value_or(1) > 1,
               "parallel is \"auto\" with {}, and no axis pp above 1, which is cut into stages",
               parallel.stages.empty() ? "chunks" : "stages");
  return search(model, cluster, options);
}

std::string lines_of(const SearchResult& result) {
  std::string text;
  for (size_t i = 0; i < std::min(kShownWays, result.count(Verdict::kPlanned)); ++i) {
    const Outcome& one = result.outcomes[i];
    text += str("  {} {}: {} a step predicted, {} of it in exchanges, {} a rank{}\n",
                i == 0 ? "chosen     " : "or         ", to_text(one.candidate), time_text(one.seconds),
                time_text(one.exchange_seconds), human_bytes(one.bytes()), one.recomputes ? ", recomputes" : "");
  }
  return text;
}

}  // namespace

Cluster cluster_of_ranks(const Target& target, int64_t ranks, int64_t on_a_machine, const MemoryBudget& budget) {
  Cluster cluster;
  cluster.name = "the ranks of this run";
  cluster.devices_per_node = on_a_machine >= 1 && ranks % on_a_machine == 0 ? on_a_machine : ranks;
  cluster.nodes = ranks / cluster.devices_per_node;
  cluster.target = target;
  cluster.cores_per_node = std::thread::hardware_concurrency();
  const uint64_t share = usable_bytes() / static_cast<uint64_t>(std::max<int64_t>(1, on_a_machine));
  const uint64_t bytes = share - std::min(share, resident_process_bytes());
  const bool has_budget = budget.kind == MemoryBudget::Kind::kBytes;
  cluster.cpu_memory_bytes = static_cast<int64_t>(has_budget ? std::min(bytes, budget.bytes) : bytes);
  if (cluster.target.gpu && has_budget)
    cluster.target.gpu->memory_bytes = std::min(cluster.target.gpu->memory_bytes, static_cast<int64_t>(budget.bytes));
  return cluster;
}

ChosenMesh choose_mesh(const Trace& captured, const Parallel& parallel, const Strategy& base, int64_t rows,
                       const Target& target, const MemoryBudget& budget, const std::optional<Fp8Recipe>& fp8,
                       Ranks& ranks) {
  std::string chosen, why_not;
  if (ranks.rank() == 0) {
    try {
      const Cluster cluster = cluster_of_ranks(target, ranks.ranks(), ranks.ranks(), budget);
      const SearchResult result = search_here(captured, parallel, base, rows, fp8, cluster);
      const Outcome* best = result.best();
      USER_CHECK(best != nullptr, "parallel is \"auto\": {}", nothing_fits(result, cluster));
      const Candidate& way = best->candidate;
      const bool needs_budget = best->recomputes && budget.kind == MemoryBudget::Kind::kNone;
      chosen = Json{{"pp", way.pp},
                    {"dp_replicate", way.dp_replicate},
                    {"dp_shard", way.dp_shard},
                    {"cp", way.cp},
                    {"tp", way.tp},
                    {"zero", std::max(way.zero, 1)},
                    {"micro_batches", way.micro_batches},
                    {"budget_bytes", needs_budget ? cluster.memory_bytes() : 0},
                    {"told", lines_of(result)}}
                   .dump();
    } catch (const UserError& error) {
      why_not = error.what();
    }
  }
  if (const std::string why = ranks.exchange(why_not)[0]; !why.empty()) throw UserError(why);
  constexpr std::string_view kWho = "the choice of rank 0";
  const Json json = parse_json(ranks.exchange(chosen)[0], kWho);
  const auto size = [&](const std::string& axis) { return json_int(json, axis, kWho, 1, ranks.ranks()); };
  ChosenMesh out;
  out.mesh = make_mesh({{"pp", size("pp")},
                        {"dp_replicate", size("dp_replicate")},
                        {"dp_shard", size("dp_shard")},
                        {"cp", size("cp")},
                        {"tp", size("tp")}});
  out.micro_batches = json_int(json, "micro_batches", kWho, 1, rows);
  out.budget = budget;
  if (const int64_t bytes = json_int(json, "budget_bytes", kWho, 0, INT64_MAX); bytes > 0)
    out.budget = {MemoryBudget::Kind::kBytes, static_cast<uint64_t>(bytes)};
  out.zero = static_cast<int>(json_int(json, "zero", kWho, 1, 3));
  out.told = json_string(json, "told", kWho);
  return out;
}

}  // namespace stepc
