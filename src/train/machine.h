// This process on its machine: the memory that it takes, the threads that it computes with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "train/run_config.h"

namespace stepc::train {

// The most memory that this process has had resident so far.
uint64_t peak_process_bytes();

// The memory that there is for this process: the machine's, or less where a control group limits it.
uint64_t usable_bytes();
// The lowest limit of a control group of version 1 or 2 and those above it. `membership`: what /proc/self/cgroup says.
// UINT64_MAX: none.
uint64_t control_group_limit(const std::filesystem::path& membership, const std::filesystem::path& groups);
// A UserError where `what` ("training model") needs more.
void check_memory(const std::string& what, uint64_t needed_bytes);

// Computes with the config's threads from now on; the config with their number where it said 0.
RunConfig use_threads(RunConfig config);

}  // namespace stepc::train
