// What the stages of a pipeline take, for search(). Stages between the first and the last are equal, so three stages
// stand for any number of them, planned with one layer each and with two. Internal to search().
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "plan/search.h"
#include "plan/search_parts.h"

namespace stepc {

// One stage: of a micro-batch, but for what says update, state or step.
struct StageTaken {
  double forward_seconds = 0;                        // of the last stage part of the backward pass
  double input_seconds = 0, weight_seconds = 0;      // of the backward pass; of one that is not cut, the first
  double exchange_seconds = 0, exposed_seconds = 0;  // of both passes
  double compute_seconds = 0;
  double update_seconds = 0, update_exchange_seconds = 0, update_exposed_seconds = 0, update_compute_seconds = 0;
  double balance_seconds = 0;  // of both passes, by the roofline that balanced_stages() goes by
  double held_bytes = 0;       // from its forward pass to the end of its backward pass
  double onward_bytes = 0;     // to the next stage, whose gradient comes back
  double state_bytes = 0;      // between steps
  double step_bytes = 0;       // the largest function's own
};

// First, between, last; of two stages first and last.
inline constexpr int64_t kShownStages = 3;
using StagesTaken = std::vector<StageTaken>;

// `micro_batch`, `update`: of a model of `stages` stages with `layers` layers each. `strategy`: of the mesh without
// stages; it learns how parameters lie. `splits_backward`: as StageOrder says. `recompute`: as SearchModel::cut's.
// UserError where it cannot be cut.
StepCut cut_layers(const Graph& micro_batch, const Graph& update, int64_t stages, int64_t layers, bool splits_backward,
                   Strategy& strategy, const RecomputeOptions* recompute);

// What the functions take. `options`: of the mesh without stages.
StagesTaken take_stages(const StepCut& cut, int64_t stages, int64_t micro_batches, PlanGraphOptions options);

// How many layers each stage has: about as balanced_stages() gives them to a run's.
std::vector<int64_t> layers_of_stages(const StagesTaken& shallow, const StagesTaken& deep, int64_t stages,
                                      int64_t layers);

// `share` of the way from one to the other.
StagesTaken between(const StagesTaken& from, const StagesTaken& to, double share);

// Of a model of all layers, by stage.
StagesTaken with_all_layers(const StagesTaken& shallow, const StagesTaken& deep, int64_t stages, int64_t layers);

// The way as a whole: the time, and the memory of the rank that needs most.
void sum_up_stages(const StagesTaken& stages, const Cluster& cluster, const SearchPins& pins, Outcome& outcome);
// Of all ranks together, what a micro-batch takes to compute.
double compute_seconds_of(const StagesTaken& stages);

}  // namespace stepc
