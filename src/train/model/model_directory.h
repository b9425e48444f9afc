// A Hugging Face model directory: its config, tokenizer and weights, in and out; or an adapter directory of PEFT and
// the model that it is for. What stepc does not interpret (tokenizer_config.json and its like) is carried over as it
// is.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "checkpoint/model_shards.h"
#include "checkpoint/tensors.h"
#include "data/tokenizer.h"
#include "models/decoder.h"
#include "models/decoder_config.h"
#include "models/lora.h"

namespace stepc::train {

struct ModelDirectory {
  std::filesystem::path path;
  models::DecoderConfig config;
  Tokenizer tokenizer;
  std::map<std::string, std::string> companions;  // file name -> content: tokenizer.json, generation_config.json, ...
  std::filesystem::path base;  // where the model's own weights are: `path`, or an adapter's base model
  std::optional<models::LoraConfig> adapter = {};
  uint64_t fresh_adapter_seed = 0;  // not 0: the adapter is drawn from it, `path` has no weights of it
};

// The tokenizer's file: the path itself, or in a directory tokenizer.json before tokenizer.model.
std::filesystem::path tokenizer_file(const std::filesystem::path& path);

// What config.json says of the model, or of the one that an adapter is for.
models::DecoderConfig read_model_config(const std::filesystem::path& path);

// Everything but the weights. UserErrors name the directory and the file.
ModelDirectory open_model_directory(const std::filesystem::path& path);

// From the headers of the weights' files: whether they are what config.json asks for, which is a UserError where they
// are not, before the model's memory is taken. Returns their bytes.
uint64_t check_weight_shapes(const ModelDirectory& directory);

// The adapter that the directory has, or draws afresh, added to the model where that has none.
void load_adapter_weights(const ModelDirectory& directory, const models::Decoder& model);

// The directory's weights, copied into the model in the model's dtype. The model gets the adapter that the directory
// has, unless it has one already.
void load_weights(const ModelDirectory& directory, models::Decoder& model);

// The model's own weights where they lie, by their names in the model.
void visit_weights(const ModelDirectory& directory,
                   const std::function<void(const std::string& name, const TensorFiles& files,
                                            const TensorFiles::Tensor& tensor)>& visit);

// A model of the directory with its weights, in the dtype and on the device. A UserError where it needs more memory
// than there is.
models::Decoder load_model(const ModelDirectory& directory, at::ScalarType dtype, const at::Device& device = at::kCPU);

// Writes config.json, the weights (in one file or several) and the companions into `destination`, which exists. The
// weights are converted to config.dtype.
void write_model_files(const std::filesystem::path& destination, const models::DecoderConfig& config,
                       const std::map<std::string, std::string>& companions, const NamedTensors& weights,
                       uint64_t max_shard_bytes = kMaxShardBytes, FileSystem& files = system_files());

// Of that all but the weights; of an adapter its config in the stead of the model's.
void write_companions(const std::filesystem::path& destination, const ModelDirectory& directory,
                      FileSystem& files = system_files());

// What training makes of the directory: the model as above, or its adapter alone, whose weights are given as
// models::adapter_state() has them.
void write_trained_files(const std::filesystem::path& destination, const ModelDirectory& directory,
                         const MadeTensors& weights, uint64_t max_shard_bytes = kMaxShardBytes,
                         FileSystem& files = system_files());

// The same of a directory's own weights, tensor by tensor: a plain Hugging Face directory of any checkpoint, in slices
// or not.
void export_model(const ModelDirectory& directory, const std::filesystem::path& destination,
                  uint64_t max_shard_bytes = kMaxShardBytes, FileSystem& files = system_files());

}  // namespace stepc::train
