// The files that a name in a config stands for.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace stepc {

// A file; a directory: the .txt, .jsonl, .ndjson and .parquet files in it, by name; a pattern such as "parts/*.jsonl":
// the files that match, by name. A name that stands for no file is a UserError.
std::vector<std::filesystem::path> find_files(const std::string& name);

}  // namespace stepc
