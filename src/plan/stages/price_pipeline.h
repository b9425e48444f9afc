// What a pipeline takes of which no graph is cut: from what its stages take, an order of their passes and how many
// micro-batches there are. For a search over strategies; a step that was cut is simulated
// (plan/stages/simulate_program.h).
#pragma once

#include <cstdint>
#include <vector>

#include "plan/stages/stage_order.h"

namespace stepc {

// A stage and one micro-batch, on one rank.
struct StageCost {
  double forward_seconds = 0;
  double input_seconds = 0, weight_seconds = 0;  // of the backward pass: for what lies in front, for its parameters
  double send_seconds = 0;                       // of what goes to the next stage, and of its gradient that comes back
  uint64_t held_bytes = 0;                       // from its forward pass to the end of its backward pass
  uint64_t working_bytes = 0;                    // beside that, while a pass runs
  uint64_t state_bytes = 0;                      // parameters, gradients, optimizer state
};

struct PipelinePrice {
  double seconds = 0;                   // of all micro-batches
  double bubble = 0;                    // which part of it a rank waits, on average
  std::vector<double> busy = {};        // by rank along pp, how long it computes
  std::vector<uint64_t> bytes = {};     // by rank along pp, at most at once
  std::vector<int64_t> live_most = {};  // by rank along pp, micro-batches of all its stages that are held at once
  bool operator==(const PipelinePrice&) const = default;
};

// `stages`: as many as the order has. UserError where its ranks would wait for each other for ever. The order of a
// name and its micro-batches: stage_order(). A step takes `seconds` and its update.
PipelinePrice price_pipeline(const std::vector<StageCost>& stages, const StageOrder& order);

}  // namespace stepc
