// `stepc init`: a model directory from nothing, so that nothing has to be downloaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace stepc::train {

struct InitOptions {
  std::filesystem::path directory;
  std::string preset = "llama-10m";
  uint64_t seed = 1;
  bool force = false;  // into a directory that is not empty: only files of the same names are replaced
};

// Config, fresh weights and a byte-level tokenizer. Returns the number of parameters.
int64_t init_model(const InitOptions& options);

}  // namespace stepc::train
