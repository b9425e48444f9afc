// What a resumed run may change: everything but what decides the order of the data and the meaning of the saved state.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "cost/target.h"
#include "train/config/run_config.h"

namespace stepc::train {

// Stores the resolved config in a checkpoint.
void save_run_config(const std::filesystem::path& checkpoint, const RunConfig& config,
                     FileSystem& files = system_files());

RunConfig saved_run_config(const std::filesystem::path& checkpoint);

// And the Target that memory.budget = "auto" was weighed with: measured anew, rates are others, and with them what is
// made again. A checkpoint of another budget has none. UserError for a file that cannot be read.
void save_target(const std::filesystem::path& checkpoint, const Target& target, FileSystem& files = system_files());
std::optional<Target> saved_target(const std::filesystem::path& checkpoint);

// Both, of a checkpoint whose plan was weighed with `target`, if it was.
void save_origin(const std::filesystem::path& checkpoint, const RunConfig& config, const std::optional<Target>& target,
                 FileSystem& files = system_files());

// Compares the config with the one that the checkpoint was made with. Throws UserError on a key that must not change;
// returns a line for each other key that did: "optim.lr = 0.002 (was 0.001)".
std::vector<std::string> check_resumed_config(const std::filesystem::path& checkpoint, const RunConfig& config);

}  // namespace stepc::train
