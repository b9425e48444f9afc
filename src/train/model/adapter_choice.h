// The low-rank adapter that a config asks for.
#pragma once

#include "train/config/run_config.h"
#include "train/model/model_directory.h"

namespace stepc::train {

// Gives the directory a fresh adapter where the config asks for one; one that it has already is trained on.
void choose_adapter(const RunConfig& config, ModelDirectory& directory);

}  // namespace stepc::train
