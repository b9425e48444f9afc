// Measures what an ATen call takes from the allocator beside its results: runs it once, alone, on zeros.
#pragma once

#include "schedule/workspaces.h"

namespace stepc {

// Returns nullopt if the call refuses zeros.
std::optional<Workspace> measure_workspace(const UnknownWorkspace& call, int threads);

}  // namespace stepc
