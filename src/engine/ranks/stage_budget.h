// A pipeline's micro-batch within a memory budget of each rank. While a function runs, the rank also holds its state
// between steps (parameters, optimizer state, gradients) and the values between its functions, for all micro-batches on
// their way. The function is planned within the rest of the budget. If that is too little, stages keep less of a
// micro-batch and recompute it in their backward pass. The same for the ranks of a run and for a plan on paper.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "engine/plan/compile.h"
#include "engine/ranks/stage_cuts.h"

namespace stepc {

// Of the program's tensors, what the functions of a rank along pp take; `parts`: of the whole step.
uint64_t held_bytes(const std::vector<const StageParts*>& parts, int64_t rank);
// At most at once, of the values that lie between a rank's functions.
uint64_t between_bytes(const StageParts& parts, int64_t rank);
// Of the rank's slots, if each keeps its memory from step to step.
uint64_t slot_bytes(const StageParts& parts, int64_t rank);
// That a rank sends to another by one call.
uint64_t sent_bytes(const StageParts& parts, const StageCall& send);
// For a rank's function, while `others` of its bytes, those above, are there.
MemoryBudget budget_of_function(const MemoryBudget& budget, const Graph& function, uint64_t others);

// What a step of a pipeline takes: bytes of the rank that takes most, and time, where a budget weighs that. The same on
// all ranks.
struct StageCost {
  uint64_t bytes = 0;
  double seconds = 0;
};
// Plans the micro-batches of a step's rounds by `plan`, which is given their parts and the budget that their functions
// are planned with, and whose last call is the one that counts: as they are, then with more and more recomputed until
// that is within options.budget.
// UserError where it is never, with the least that does. A budget "auto" takes the most that is recomputed for no more
// of the step's time than of a step in one piece, if that takes less memory; it is returned with what it was weighed
// against.
using PlanRoundsFn = std::function<StageCost(std::vector<StageParts> micro_batches, const MemoryBudget& budget)>;
std::optional<AutoBudget> plan_within(const BatchCut& cut, StageCuts& cuts, const CompileOptions& options,
                                      const PlanRoundsFn& plan);

}  // namespace stepc
