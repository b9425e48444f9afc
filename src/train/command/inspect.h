// `stepc inspect DIR`: verifies a checkpoint, a model directory or a whole run, and prints what is in it.
#pragma once

#include <filesystem>
#include <string>

namespace stepc::train {

struct Inspection {
  std::string table;
  bool is_good = true;  // nothing is damaged or missing
};

// A directory that is none of the three is a UserError.
Inspection inspect(const std::filesystem::path& directory);

}  // namespace stepc::train
