// A training run from its config to a finished model directory: set-up, the loop, checkpoints, the report.
#pragma once

#include <filesystem>
#include <stdexcept>

#include "base/file_system.h"
#include "train/config/run_config.h"

namespace stepc::train {

// A run that began and could not go on: a loss that is not a number, a full disk.
class RunFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Returns 0 when the run is complete, 128 + signal when one of StopSignals stopped it at a step boundary. Throws
// UserError before the first step, RunFailure after, LostRank whenever another rank is gone. `files`: where checkpoints
// and the model are written. `profile`: where the trace of one step's instructions is written, once replays are under
// way; empty: nowhere.
int train(RunConfig config, bool resume, FileSystem& files = system_files(), const std::filesystem::path& profile = {});

}  // namespace stepc::train
