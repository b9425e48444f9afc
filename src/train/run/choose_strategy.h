// choose_strategy(): how a run with parallel.strategy = "auto" is spread over the ranks that there are. Plain data out;
// nothing is loaded or run.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "comm/launch.h"
#include "comm/ranks.h"
#include "train/config/run_config.h"
#include "train/run/run_directory.h"

namespace stepc::train {

struct ChosenStrategy {
  RunConfig::Parallel parallel;  // with all axes
  RunConfig::Train train;        // with the micro-batches
  std::string budget;            // memory.budget: the config's, or what makes a step fit that otherwise would not
  std::string why;               // the best ways with what each takes, for people
};

// The first rank searches and tells the others, which wait as long as it does. Each rank is taken for a device with its
// share of the machine's memory and, where `stepc calibrate` has measured the machine, with its rates; on devices for
// its card. Keys that the config gives hold; where train.micro_batches is none of them, the rows of train.batch_size
// are searched for as so many micro-batches. A run that goes on from a checkpoint keeps its micro-batches, and of as
// many ranks all that was chosen then. `document_tokens`: as search_model() takes it. `progress`: ways done of all, on
// the first rank. UserError on all ranks for pins that contradict each other, and where nothing fits.
ChosenStrategy choose_strategy(const RunConfig& config, const RunDirectory& directory, const Launch& launch,
                               Ranks& ranks, const at::Device& device, std::optional<double> document_tokens,
                               const std::function<void(size_t done, size_t all)>& progress);

}  // namespace stepc::train
