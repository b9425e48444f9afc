// A Hugging Face model directory: its config, tokenizer and weights, in and out. What stepc does not interpret
// (tokenizer_config.json and its like) is carried over as it is.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "checkpoint/tensors.h"
#include "data/tokenizer.h"
#include "models/decoder.h"
#include "models/decoder_config.h"

namespace stepc::train {

struct ModelDirectory {
  std::filesystem::path path;
  models::DecoderConfig config;
  Tokenizer tokenizer;
  std::map<std::string, std::string> companions;  // file name -> content: tokenizer.json, generation_config.json, ...
};

// The tokenizer's file: the path itself, or in a directory tokenizer.json before tokenizer.model.
std::filesystem::path tokenizer_file(const std::filesystem::path& path);

// Everything but the weights. UserErrors name the directory and the file.
ModelDirectory open_model_directory(const std::filesystem::path& path);

// The directory's weights, copied into the model in the model's dtype; returns them as they are in the files.
NamedTensors load_weights(const ModelDirectory& directory, models::Decoder& model);

// A model of the directory with its weights, in the dtype.
models::Decoder load_model(const ModelDirectory& directory, at::ScalarType dtype);

// Writes config.json, model.safetensors and the companions into `destination`, which exists. The weights are converted
// to config.dtype.
void write_model_files(const std::filesystem::path& destination, const models::DecoderConfig& config,
                       const std::map<std::string, std::string>& companions, const NamedTensors& weights);

}  // namespace stepc::train
