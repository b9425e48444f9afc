// `stepc memory run.toml`: where every byte of a training step will go, before anything runs: the step is captured
// without executing it, on a model without memory, and planned as `stepc train` would in fast mode. The data are read,
// through the run's cache of tokens.
#pragma once

#include <filesystem>

#include "train/config/run_config.h"

namespace stepc::train {

// Prints the table. `picture`: where an SVG of live bytes by instruction is written; empty: nowhere.
int run_memory(RunConfig config, const std::filesystem::path& picture);

}  // namespace stepc::train
