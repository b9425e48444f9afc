// This process on its machine: the memory that it needs, the threads that it computes with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "train/config/run_config.h"

namespace stepc::train {

// A UserError where `what` ("training model") needs more.
void check_memory(const std::string& what, uint64_t needed_bytes);

// Computes with the config's threads from now on; the config with their number where it said 0: this process's share of
// the cores, where it is one of `local_ranks` on this machine, unless OMP_NUM_THREADS says what each has.
RunConfig use_threads(RunConfig config, int64_t local_ranks = 1);

}  // namespace stepc::train
