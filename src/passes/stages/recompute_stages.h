// recompute_stages: what a stage of a pipeline would keep of a micro-batch from its forward pass to its backward pass
// is recomputed there where that is worth its bytes (passes/recompute.h), of what the stage in front has sent and of
// what is kept all the same. Values that cross to another stage stay as they are, so no stage waits for more than
// before. The meaning stays, bit by bit.
#pragma once

#include "passes/recompute.h"
#include "passes/stages/place_nodes.h"

namespace stepc {

// `micro_batch`: placed so; its peak, which options.budget_bytes is of, is that of all stages together.
RecomputeResult recompute_stages(Graph micro_batch, const StagePlaces& places, RecomputeOptions options);

}  // namespace stepc
