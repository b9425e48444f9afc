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
#include "checkpoint/tensor_files.h"
#include "ir/dtype.h"

namespace stepc {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

uint64_t bytes_of(const NamedTensors& tensors);

at::ScalarType to_scalar_type(DType dtype);
// nullopt for a type that stepc does not have (quantized, uint16, ...).
std::optional<DType> from_scalar_type(at::ScalarType type);

// Contiguous CPU copies, in the file's order.
NamedTensors load_tensors(const std::filesystem::path& path);
// A tensor of a directory, and a box of it.
at::Tensor read_tensor(const TensorFiles& files, const TensorFiles::Tensor& tensor);
at::Tensor read_tensor(const TensorFiles& files, const TensorFiles::Tensor& tensor, const Box& box);
// All of them, and all weights of a model's directory: one file, several, or slices.
NamedTensors load_tensors(const TensorFiles& files);
NamedTensors load_model_tensors(const std::filesystem::path& directory);
// The same one after the other, with no more than one of them in memory.
void visit_model_tensors(const std::filesystem::path& directory,
                         const std::function<void(const std::string& name, const at::Tensor& tensor)>& visit);

// A tensor that is made when it is written, so that no more than one of them need be there.
struct MadeTensor {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  std::function<at::Tensor()> make;
};
using MadeTensors = std::vector<MadeTensor>;
MadeTensors made_of(const NamedTensors& tensors);
// `files` must outlive what is made.
MadeTensors made_of(const TensorFiles& files);

// Tensors of any layout and device; each is made contiguous on the CPU as it is written.
void save_tensors(const std::filesystem::path& path, const MadeTensors& tensors,
                  const SafetensorsMetadata& metadata = {}, FileSystem& files = system_files());
void save_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                  const SafetensorsMetadata& metadata = {}, FileSystem& files = system_files());

// The weights of a Hugging Face directory: model.safetensors, or, where they are more than `max_shard_bytes`, the files
// model-00001-of-00003.safetensors and on with model.safetensors.index.json, cut where transformers cuts. In one dtype;
// none: each in its own.
void save_model_tensors(const std::filesystem::path& directory, const MadeTensors& weights,
                        std::optional<at::ScalarType> dtype, uint64_t max_shard_bytes,
                        FileSystem& files = system_files());
void save_model_tensors(const std::filesystem::path& directory, const NamedTensors& weights, at::ScalarType dtype,
                        uint64_t max_shard_bytes, FileSystem& files = system_files());

// The same where some tensors are to have files apart from others: one for each part that has any.
void save_model_parts(const std::filesystem::path& directory, const std::vector<NamedTensors>& parts,
                      FileSystem& files = system_files());

}  // namespace stepc
