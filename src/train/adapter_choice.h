// The low-rank adapter that a config asks for.
#pragma once

#include "train/model_directory.h"
#include "train/run_config.h"

namespace stepc::train {

// Gives the directory a fresh adapter where the config asks for one; one that it has already is trained on.
void choose_adapter(const RunConfig& config, ModelDirectory& directory);

}  // namespace stepc::train
