// The launch of a run's ranks on this machine by torchrun's agent, which starts all of them again where one fails.
#pragma once

#include "train/command/local_ranks.h"
#include "train/config/run_config.h"

namespace stepc::train {

// This process becomes the agent: python -m torch.distributed.run of the first of pythons() that has torch. Returns
// only by a UserError: no Python has it. Ranks have their share of the cores, as run_local_ranks() gives it.
int run_restarted_ranks(const LocalRanks& launch, int restarts, const RunConfig& config);

}  // namespace stepc::train
