#include "engine/ranks/stage_budget.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "kernels/kernel_choice.h"
#include "memory/graph_memory.h"
#include "plan/step_state.h"

namespace stepc {

namespace {
// The budget is lowered in this many parts of the micro-batch's peak without a budget.
constexpr uint64_t kParts = 8;
constexpr uint64_t kKiB = 1024;
// Shares of the time that a budget "auto" may cost; the first share that pays is used. Recomputation in a single stage
// costs the pipeline more than that stage's share of the time.
constexpr double kShares[] = {1, 0.5, 0.25, 0};

// A micro-batch of each round.
using Rounds = std::vector<Graph>;

std::vector<StageParts> parts_of(const Rounds& rounds, StageCuts& cuts) {
  std::vector<StageParts> parts;
  for (const Graph& graph : rounds) parts.push_back(cuts.micro_batch(graph));
  return parts;
}

Rounds recomputed(const Rounds& rounds, StageCuts& cuts, const RecomputeOptions& options) {
  Rounds now;
  for (const Graph& graph : rounds) now.push_back(cuts.recomputed(graph, options).graph);
  return now;
}

AutoBudget plan_by_time(const Rounds& rounds, StageCuts& cuts, RecomputeOptions recompute, const MemoryBudget& budget,
                        const PlanRoundsFn& plan) {
  const double most_extra = recompute.most_extra;
  const StageCost without = plan(parts_of(rounds, cuts), {});
  const auto weighed = [&](const StageCost& chosen) {
    return AutoBudget{{chosen.seconds, chosen.bytes}, {without.seconds, without.bytes}};
  };
  for (const double share : kShares) {
    if (share > 0 && cuts.order().stages == 1) continue;
    recompute.most_extra = share * most_extra;
    const StageCost cost = plan(parts_of(share > 0 ? recomputed(rounds, cuts, recompute) : rounds, cuts), budget);
    if (cost.bytes < without.bytes && cost.seconds <= (1 + most_extra) * without.seconds) return weighed(cost);
  }
  return weighed(plan(parts_of(rounds, cuts), {}));
}
}  // namespace

uint64_t held_bytes(const std::vector<const StageParts*>& parts, int64_t rank) {
  StepState held;
  for (const StageParts* one : parts)
    for (size_t f = 0; f < one->cut.functions.size(); ++f)
      if (one->program.functions[f].rank == rank) held.merge(state_of(one->cut.functions[f].graph));
  return bytes_of(held);
}

uint64_t between_bytes(const StageParts& parts, int64_t rank) {
  std::vector<uint64_t> bytes;
  for (const StageValue& value : parts.cut.values) bytes.push_back(bytes_of(value.type));
  return peak_slot_bytes(parts.program, rank, bytes);
}

uint64_t slot_bytes(const StageParts& parts, int64_t rank) {
  std::map<uint32_t, uint64_t> bytes;
  for (const StageCall& call : parts.program.calls[static_cast<size_t>(rank)])
    for (const SlotValue& one : call.writes) bytes[one.slot] = bytes_of(parts.cut.values[one.value].type);
  uint64_t all = 0;
  for (const auto& [slot, of_slot] : bytes) all += of_slot;
  return all;
}

uint64_t sent_bytes(const StageParts& parts, const StageCall& send) {
  uint64_t bytes = 0;
  for (const SlotValue& one : send.reads) bytes += bytes_of(parts.cut.values[one.value].type);
  return bytes;
}

MemoryBudget budget_of_function(const MemoryBudget& budget, const Graph& function, uint64_t others) {
  return beside(budget, others - std::min(others, bytes_of_inputs(function)));  // a plan counts its inputs
}

std::optional<AutoBudget> plan_within(const BatchCut& cut, StageCuts& cuts, const CompileOptions& options,
                                      const PlanRoundsFn& plan) {
  Rounds rounds;
  for (const BatchCut::Round& round : cut.rounds) rounds.push_back(round.micro_batch);
  const MemoryBudget& budget = options.budget;
  RecomputeOptions recompute;
  recompute.target = options.target;
  recompute.matmuls = matmul_rule(options.target.features);
  recompute.looks = std::make_shared<RecomputeLooks>();
  if (budget.kind == MemoryBudget::Kind::kAuto) return plan_by_time(rounds, cuts, recompute, budget, plan);
  uint64_t least = plan(parts_of(rounds, cuts), budget).bytes;
  if (budget.kind == MemoryBudget::Kind::kNone || least <= budget.bytes) return std::nullopt;
  // With one stage, one function has both passes, and its plan decides what is recomputed.
  if (cuts.order().stages > 1) {
    recompute.budget_bytes = UINT64_MAX;
    uint64_t peak = 0;
    for (const Graph& graph : rounds) peak = std::max(peak, cuts.recomputed(graph, recompute).peak_before);
    Rounds before = rounds;
    for (uint64_t part = kParts; part-- > 0;) {
      recompute.budget_bytes = peak / kParts * part;
      Rounds now = recomputed(rounds, cuts, recompute);
      if (now == before) continue;
      before = std::move(now);
      const uint64_t needed = plan(parts_of(before, cuts), budget).bytes;
      if (needed <= budget.bytes) return std::nullopt;
      least = std::min(least, needed);
    }
  }
  const bool is_alone = cuts.order().stages == 1;
  user_error("the memory budget is {}, and {} {}KiB at the least: give that much, or take more{} micro-batches",
             human_bytes(budget.bytes), is_alone ? "the step takes" : "a rank of the pipeline takes",
             (least + kKiB - 1) / kKiB, is_alone ? "" : " stages or smaller");
}

}  // namespace stepc
