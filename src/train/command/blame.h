// `stepc blame DIR`: which rank ended a run, from what all ranks have left of their last instructions
// (comm/watch/flight_file.h). A rank that was killed leaves nothing; those that waited for it tell on it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "comm/watch/flight_file.h"

namespace stepc::train {

// Of one attempt's files, a sentence that names the culprit, and a row a rank. In the order of: ranks that failed of an
// error of their own, or told the others of one; those that left nothing, first those that others waited for; those
// that stayed in one place; the one that had come less far than the others; connections.
std::string blame(std::vector<FlightFile> files);

// Of the newest attempt in a run's directory that failed. UserError where none has, or a file is not one.
std::string blame_run(const std::filesystem::path& run);

}  // namespace stepc::train
