// The memory that there is for this process, and what it takes.
#pragma once

#include <cstdint>
#include <filesystem>

namespace stepc {

// The machine's, or less where a control group limits it.
uint64_t usable_bytes();
// The lowest limit of a control group of version 1 or 2 and those above it. `membership`: what /proc/self/cgroup says.
// UINT64_MAX: none.
uint64_t control_group_limit(const std::filesystem::path& membership, const std::filesystem::path& groups);

// The most memory that this process has had resident so far.
uint64_t peak_process_bytes();
// And what it has now.
uint64_t resident_process_bytes();

}  // namespace stepc
