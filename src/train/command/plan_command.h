// `stepc plan run.toml --cluster h100x1024`: how the run's step is best spread over a cluster that need not be here. Of
// the model config.json is read alone; neither data nor weights are.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/config/run_config.h"

namespace stepc::train {

struct PlanCommand {
  std::vector<std::string> clusters;  // as cost/cluster.h knows them
  // What else is asked for; each combination is one question. Empty: as the run has it.
  std::vector<int64_t> tokens, rows;      // of a row; of a step
  std::vector<std::string> computes;      // model.compute, or "fp8"
  std::vector<std::string> memories;      // of a device, as "40GiB"
  std::vector<std::string> pins;          // "tp=8", "zero=3", "micro_batches=4"
  std::optional<double> document_tokens;  // of data whose rows pack documents; none: each row is one
  size_t most_plans = 1500;               // as in SearchOptions
  std::vector<std::string> without;       // passes
  std::filesystem::path json;             // where all ways are written, of several questions a list; empty: nowhere
  std::filesystem::path html;             // a page of what was found for the first question; empty: none
  size_t top = 5;
};

// Prints what was found and why; of several questions a table. Returns 1 where nothing fits.
int run_plan(const RunConfig& config, const PlanCommand& command);

}  // namespace stepc::train
