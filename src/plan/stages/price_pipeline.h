// The cost of a pipeline whose graph is not cut: from the cost of its stages, an order of their passes and the number
// of micro-batches. For a search over strategies; a step that was cut is simulated (plan/stages/simulate_program.h).
#pragma once

#include <cstdint>
#include <vector>

#include "plan/stages/stage_order.h"

namespace stepc {

// The cost of a stage for one micro-batch, on one rank.
struct StageCost {
  double forward_seconds = 0;
  double input_seconds = 0, weight_seconds = 0;  // of the backward pass: for its inputs, for its parameters
  double send_seconds = 0;     // of the activations for the next stage, and of their gradients on the way back
  uint64_t held_bytes = 0;     // from the forward pass to the end of the backward pass
  uint64_t working_bytes = 0;  // in addition, while a pass runs
  uint64_t state_bytes = 0;    // parameters, gradients, optimizer state
};

struct PipelinePrice {
  double seconds = 0;                   // of all micro-batches
  double bubble = 0;                    // the share of it in which a rank waits, on average
  std::vector<double> busy = {};        // by rank along pp: the time in which it computes
  std::vector<uint64_t> bytes = {};     // by rank along pp: the most at one time
  std::vector<int64_t> live_most = {};  // by rank along pp: the most micro-batches that all its stages hold at one time
  bool operator==(const PipelinePrice&) const = default;
};

// `stages`: one for each stage of the order. Throws UserError if the ranks would wait for each other forever.
// stage_order() gives the order for a name and a number of micro-batches. A step takes `seconds` and its update.
PipelinePrice price_pipeline(const std::vector<StageCost>& stages, const StageOrder& order);

}  // namespace stepc
