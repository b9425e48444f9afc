// The step that a run of one process takes, accelerated.
#pragma once

#include "engine/stepc.h"
#include "models/decoder.h"
#include "train/config/run_config.h"
#include "train/step/optimizer_choice.h"
#include "train/step/train_step.h"

namespace stepc::train {

// Of the engine, as a run's configuration has it.
Config engine_config(const RunConfig& config, Mode mode, Capture capture);

// Takes all_rows() of a batch. The Graph of a step is cut into its micro-batches, as a pipeline of one stage, so that
// its plan and its start do not grow with their number; recorded calls, of which exact mode and devices are, cannot be
// cut, and take them in a loop.
Accelerated<TrainStep> accelerated_step(models::Decoder model, const ChosenOptimizer& optimizer,
                                        const RunConfig& config, Config engine);

}  // namespace stepc::train
