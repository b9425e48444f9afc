// Measures what an ATen call takes from the allocator beside its results: runs it once, alone, on zeros.
#pragma once

#include "schedule/workspaces.h"

namespace stepc {

// Returns nullopt if the call refuses zeros.
// `device`: where the call runs; empty: on the CPU.
std::optional<Workspace> measure_workspace(const UnknownWorkspace& call, int threads, const std::string& device = {});

}  // namespace stepc
