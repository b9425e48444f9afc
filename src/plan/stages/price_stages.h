// What a pipeline takes whose stages take what they are said to: its calls are made and simulated as those of a step
// are, without a graph of any stage.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/stages/simulate_program.h"
#include "plan/stages/stage_order.h"

namespace stepc {

// One stage, of one micro-batch.
struct StageTake {
  double forward_seconds = 0;   // of the last stage part of the next
  double backward_seconds = 0;
  uint64_t kept_bytes = 0;      // from its forward to its backward pass
  uint64_t onward_bytes = 0;    // to the next stage
  uint64_t back_bytes = 0;      // to the stage before
};

struct PricedStages {
  ProgramTimeline timeline;             // of the micro-batches
  std::vector<uint64_t> between_bytes;  // by rank: values that lie between passes, at most
};

// `message_seconds`: of so many bytes to the next or the last rank. UserError as make_program().
PricedStages price_stages(const std::vector<StageTake>& stages, const StageOrder& order,
                          const std::function<double(double bytes)>& message_seconds);

}  // namespace stepc
