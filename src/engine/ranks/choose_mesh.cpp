#include "engine/ranks/choose_mesh.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/json.h"
#include "base/machine_memory.h"
#include "base/text.h"
#include "cost/profile.h"
#include "passes/from_trace/functionalise.h"
#include "plan/search.h"
#include "plan/search_text.h"

namespace stepc {

namespace {

constexpr size_t kShownWays = 5;

std::optional<int64_t> pinned(const Parallel& parallel, std::string_view axis) {
  const auto found = std::ranges::find(parallel.axes, axis, &MeshAxis::name);
  return found == parallel.axes.end() || found->size == -1 ? std::nullopt : std::optional(found->size);
}

SearchResult search_here(const Trace& captured, const Parallel& parallel, const Strategy& base, int64_t rows,
                         const Cluster& cluster) {
  SearchModel model;
  model.heads = cluster.devices();  // who cannot be split so, the plan says
  model.rows = rows;
  const Graph graph = functionalise(captured);
  model.capture = [&](int64_t, int64_t, int64_t) { return std::vector<SearchPart>{{"the step", 1, graph}}; };
  SearchOptions options;
  options.top = kShownWays;
  options.pins = {.dp_replicate = pinned(parallel, "dp_replicate"),
                  .dp_shard = pinned(parallel, "dp_shard"),
                  .cp = pinned(parallel, "cp").value_or(1),
                  .tp = pinned(parallel, "tp"),
                  .micro_batches = 1,
                  .base = base};
  if (parallel.zero > 0) options.pins.zero = parallel.zero;
  if (parallel.batch == Parallel::Batch::kLocal) {
    const bool splits_rows_alone = pinned(parallel, "cp").value_or(1) == 1 && pinned(parallel, "tp").value_or(1) == 1;
    USER_CHECK(splits_rows_alone,
               "parallel is \"auto\" with cp or tp, along which ranks have the same rows: give batch=\"global\", the "
               "whole batch on every rank");
    options.pins.tp = 1;
  }
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
  const uint64_t share = usable_bytes() / static_cast<uint64_t>(std::max<int64_t>(1, on_a_machine));
  const uint64_t bytes = share - std::min(share, resident_process_bytes());
  const bool has_budget = budget.kind == MemoryBudget::Kind::kBytes;
  cluster.cpu_memory_bytes = static_cast<int64_t>(has_budget ? std::min(bytes, budget.bytes) : bytes);
  return cluster;
}

ChosenMesh choose_mesh(const Trace& captured, const Parallel& parallel, const Strategy& base, int64_t rows,
                       const Target& target, const MemoryBudget& budget, Ranks& ranks) {
  std::string chosen, why_not;
  if (ranks.rank() == 0) {
    try {
      const Cluster cluster = cluster_of_ranks(target, ranks.ranks(), ranks.ranks(), budget);
      const SearchResult result = search_here(captured, parallel, base, rows, cluster);
      const Outcome* best = result.best();
      USER_CHECK(best != nullptr, "parallel is \"auto\": {}", nothing_fits(result, cluster));
      const Candidate& way = best->candidate;
      chosen = Json{{"dp_replicate", way.dp_replicate}, {"dp_shard", way.dp_shard}, {"cp", way.cp}, {"tp", way.tp},
                    {"zero", std::max(way.zero, 1)},    {"told", lines_of(result)}}
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
  out.mesh = make_mesh(
      {{"dp_replicate", size("dp_replicate")}, {"dp_shard", size("dp_shard")}, {"cp", size("cp")}, {"tp", size("tp")}});
  out.zero = static_cast<int>(json_int(json, "zero", kWho, 1, 3));
  out.told = json_string(json, "told", kWho);
  return out;
}

}  // namespace stepc
