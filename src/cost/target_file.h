// Where a machine's measured Target is kept: beside its generated kernels, one file a count of threads.
#pragma once

#include <filesystem>
#include <optional>

#include "cost/target.h"

namespace stepc {

// `directory` / "target-2-threads.toml".
std::filesystem::path target_file(const std::filesystem::path& directory, int threads);

// What was measured there with these threads; nullopt: nothing. UserError with file, line and key for one that
// cannot be read.
std::optional<Target> kept_target(const std::filesystem::path& directory, int threads);

// Replaces the file, whole or not at all.
void keep_target(const std::filesystem::path& directory, const Target& target);

}  // namespace stepc
