// `stepc plan run.toml --cluster h100x1024`: how the run's step is best spread over a cluster that need not be here. Of
// the model config.json is read alone; neither data nor weights are.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "train/config/run_config.h"

namespace stepc::train {

struct PlanCommand {
  std::vector<std::string> clusters;  // as cost/cluster.h knows them; the first is explained, the others compared
  std::vector<std::string> pins;      // "tp=8", "zero=3", "micro_batches=4"
  std::filesystem::path json;         // where all ways are written; empty: nowhere
  std::filesystem::path html;         // a page of what was found; empty: none
  size_t top = 5;
};

// Prints the table. Returns 1 where nothing fits.
int run_plan(const RunConfig& config, const PlanCommand& command);

}  // namespace stepc::train
