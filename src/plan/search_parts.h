// The cost of the planned parts of a step, and the extrapolation from a model of few layers to one of many. Internal to
// search().
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "cost/target.h"
#include "passes/fusion/known_groups.h"
#include "plan/layer_memory.h"
#include "plan/plan_graph.h"
#include "plan/step_state.h"

namespace stepc {

// A quantity of a model, or of a stage, extrapolated from kShallow and kDeep layers to more layers.
double of_depth(double shallow, double deep, int64_t layers);
uint64_t bytes_of_depth(double shallow, double deep, int64_t layers);
// For each of kDeep layers, so many that are not there; none in a model of fewer.
double more_layers(int64_t layers);

// The cost of a part's plan, at one depth: of the whole step, or of a function that it is cut into.
struct Taken {
  double times = 1;         // runs in a step
  bool has_passes = false;  // forward and backward
  double seconds = 0, exchange_seconds = 0, exposed_seconds = 0;
  double compute_seconds = 0;               // all but exchanges
  double pass_seconds = 0;                  // of these, forward and backward passes
  double input_bytes = 0, state_bytes = 0;  // the program's tensors; of these, those between steps
  LayerMemory memory = {};                  // all other bytes
};

// A planned part, and its tensors between steps.
struct PartPlan {
  Taken taken;
  StepState state;
  std::map<std::string, Sharding> parameters;  // their shardings
  Context context = Context::kGather;
};
PartPlan plan_part(const Graph& captured, const PlanGraphOptions& options);

// The plans of parts of one search. A part without exchanges is planned once for all ways that have it. Threads may
// share them.
class PartPlans {
 public:
  // As plan_part(). Of one search, all that `options` do not say of budget and strategy is the same for all parts.
  PartPlan plan(const Graph& captured, PlanGraphOptions options);

 private:
  std::shared_ptr<KnownGroups> groups_ = std::make_shared<KnownGroups>();
  std::mutex mutex_;  // of the next
  std::map<std::string, PartPlan> alone_;
};

// A step of one depth, before it is split.
struct WholeStep {
  double flops = 0;
  double gradient_bytes = 0;  // as micro-batches hold them
  StepState state;
  [[nodiscard]] double bytes(InputKind kind) const;
};
WholeStep whole_of(const Graph& step);

// The way of attention of a step.
Context context_of(const Graph& step, const PlanGraphOptions& options);

}  // namespace stepc
