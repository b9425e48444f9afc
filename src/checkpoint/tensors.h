// Tensors from and to safetensors files: the one place of this folder that knows LibTorch.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "checkpoint/safetensors.h"
#include "ir/dtype.h"

namespace stepc {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

at::ScalarType to_scalar_type(DType dtype);
// nullopt for a type that stepc does not have (quantized, uint16, ...).
std::optional<DType> from_scalar_type(at::ScalarType type);

// Contiguous CPU copies, in the file's order.
NamedTensors load_tensors(const std::filesystem::path& path);
// All weights of a Hugging Face directory, one file or several.
NamedTensors load_model_tensors(const std::filesystem::path& directory);
// The same one after the other, with no more than one of them in memory.
void visit_model_tensors(const std::filesystem::path& directory,
                         const std::function<void(const std::string& name, const at::Tensor& tensor)>& visit);

// Tensors of any layout and device; each is made contiguous on the CPU first.
void save_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                  const SafetensorsMetadata& metadata = {}, FileSystem& files = system_files());

// The weights of a Hugging Face directory: model.safetensors, or, where they are more than `max_shard_bytes`, the files
// model-00001-of-00003.safetensors and on with model.safetensors.index.json, cut where transformers cuts.
void save_model_tensors(const std::filesystem::path& directory, const NamedTensors& weights, at::ScalarType dtype,
                        uint64_t max_shard_bytes, FileSystem& files = system_files());

}  // namespace stepc
