// The cost of a pipeline's stages, for search(). All stages between the first and the last are equal, so three stages
// stand for any number of them, planned with one layer each and with two. Internal to search().
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "passes/fp8.h"
#include "passes/stages/cut_batch.h"
#include "plan/search.h"
#include "plan/search_parts.h"

namespace stepc {

// The cost of one stage: of a micro-batch, except for fields named update, state or step.
struct StageTaken {
  double forward_seconds = 0;                        // of the last stage: with a part of the backward pass
  double input_seconds = 0, weight_seconds = 0;      // of the backward pass; one that is not cut has only the first
  double exchange_seconds = 0, exposed_seconds = 0;  // of both passes
  double compute_seconds = 0;                        // of both passes; of each:
  double forward_compute_seconds = 0, input_compute_seconds = 0, weight_compute_seconds = 0;
  double update_seconds = 0, update_exchange_seconds = 0, update_exposed_seconds = 0, update_compute_seconds = 0;
  double balance_seconds = 0;  // of both passes, by the roofline of balanced_stages()
  double held_bytes = 0;       // from the forward pass to the end of the backward pass
  double onward_bytes = 0;     // to the next stage, which returns a gradient of the same size
  double state_bytes = 0;      // between steps
  double step_bytes = 0;       // of the largest function
  int64_t layers = 0;
  std::vector<LayerMemory> functions = {};  // of a stage that was planned
};

// First, middle, last; of two stages the first and the last.
inline constexpr int64_t kShownStages = 3;
using StagesTaken = std::vector<StageTaken>;

// A captured step in time. `strategy`: of the mesh without stages; receives the shardings of the parameters.
BatchCut cut_in_time(const Graph& step, int64_t micro_batches, Strategy& strategy, const Features& features,
                     const std::optional<Fp8Recipe>& fp8);
// `cut`: of a model of `stages` stages with `layers` layers each. `splits_backward`: as in StageOrder. `recompute`: as
// in SearchModel::cut. Throws UserError if the step cannot be cut.
StepCut cut_layers(BatchCut cut, int64_t stages, int64_t layers, bool splits_backward,
                   const RecomputeOptions* recompute);

// The cost of the functions. `options`: of the mesh without stages.
StagesTaken take_stages(const StepCut& cut, int64_t stages, int64_t micro_batches, PlanGraphOptions options,
                        PartPlans& plans);

// The number of layers in each stage: about the balance that balanced_stages() gives a run.
std::vector<int64_t> layers_of_stages(const StagesTaken& shallow, const StagesTaken& deep, int64_t stages,
                                      int64_t layers);

// The stages at `share` of the way from one to the other.
StagesTaken between(const StagesTaken& from, const StagesTaken& to, double share);

// The stages of a model, each with so many layers.
StagesTaken with_all_layers(const StagesTaken& shallow, const StagesTaken& deep, const std::vector<int64_t>& layers);

// The result for the whole way: the time, and the memory of the rank that needs most.
void sum_up_stages(const StagesTaken& stages, const Cluster& cluster, const SearchPins& pins, Outcome& outcome);
// What the way takes at least with this computation, however its exchanges are hidden.
double least_seconds_of(const StagesTaken& stages, const SearchPins& pins, const Candidate& way);
// The computation of one micro-batch, by stage.
std::vector<double> compute_seconds_of(const StagesTaken& stages);

}  // namespace stepc
