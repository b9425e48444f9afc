// `stepc calibrate --cluster FILE`: what the links between ranks reach, as a cluster file.
#pragma once

#include "train/command/commands.h"

namespace stepc::train {

// With `ranks` it starts these here; else this process is a rank. The first rank writes the file, the Target of a rank
// beside it, and prints what was measured. UserError for a process alone, and for machines with unlike many ranks.
int calibrate_cluster(const CalibrateCommand& command);

}  // namespace stepc::train
