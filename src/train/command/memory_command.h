// `stepc memory run.toml`: where every byte of a training step will go, before anything runs: the step is captured
// without executing it, on a model without memory, and planned as `stepc train` would in fast mode. The data are read,
// through the run's cache of tokens.
#pragma once

#include <filesystem>
#include <string>

#include "train/config/run_config.h"

namespace stepc::train {

// Prints the table. `picture`: where an SVG of live bytes by instruction is written; empty: nowhere. `target`: a
// machine as cost/named_target.h knows it, on which the step would run; empty: this one.
int run_memory(RunConfig config, const std::filesystem::path& picture, const std::string& target);

}  // namespace stepc::train
