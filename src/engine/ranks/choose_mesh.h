// choose_mesh(): the best mesh for a step of a program of your own, if Parallel::is_searched. Plain data out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "comm/ranks.h"
#include "cost/cluster.h"
#include "cost/target.h"
#include "engine/ranks/parallel.h"
#include "ir/trace.h"
#include "passes/fp8.h"
#include "passes/partition/strategy.h"
#include "plan/memory_budget.h"

namespace stepc {

// The ranks of a run as devices, `on_a_machine` of them on each: their share of its memory, less what this process has
// resident already, or of a budget of bytes where that is less.
Cluster cluster_of_ranks(const Target& target, int64_t ranks, int64_t on_a_machine, const MemoryBudget& budget);

struct ChosenMesh {
  Mesh mesh;
  int zero = 3;
  int64_t micro_batches = 1;
  MemoryBudget budget;  // the one that was given, or, where nothing fits without recomputation, what a rank has
  std::string told;     // the ways that take least, and what each takes, a line each
};

// Of a step that was captured at the sizes of the whole batch, `rows` rows. The first rank searches (plan/search.h) and
// tells the others; each rank is a device with its share of the machine's memory, or `budget` where that is less.
// `base`: what the strategy says beside. Of batches that are each rank's own rows the ways are those along
// dp_replicate and dp_shard. A pipeline is looked at with as many micro-batches as it has ranks, twice and four times
// as many, all else with one, where the person says no number. UserError on all ranks: axes that contradict each other;
// nothing fits.
ChosenMesh choose_mesh(const Trace& captured, const Parallel& parallel, const Strategy& base, int64_t rows,
                       const Target& target, const MemoryBudget& budget, const std::optional<Fp8Recipe>& fp8,
                       Ranks& ranks);

}  // namespace stepc
