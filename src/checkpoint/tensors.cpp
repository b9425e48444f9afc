#include "checkpoint/tensors.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <ATen/ops/empty.h>

#include "base/check.h"
#include "checkpoint/model_shards.h"

namespace stepc {

namespace {
constexpr std::array<std::pair<DType, at::ScalarType>, 14> kTypes = {{{DType::kBool, at::kBool},
                                                                      {DType::kU8, at::kByte},
                                                                      {DType::kI8, at::kChar},
                                                                      {DType::kI16, at::kShort},
                                                                      {DType::kI32, at::kInt},
                                                                      {DType::kI64, at::kLong},
                                                                      {DType::kF16, at::kHalf},
                                                                      {DType::kBF16, at::kBFloat16},
                                                                      {DType::kF32, at::kFloat},
                                                                      {DType::kF64, at::kDouble},
                                                                      {DType::kC64, at::kComplexFloat},
                                                                      {DType::kC128, at::kComplexDouble},
                                                                      {DType::kF8E4M3, at::kFloat8_e4m3fn},
                                                                      {DType::kF8E5M2, at::kFloat8_e5m2}}};

// A byte of a C++ bool must be 0 or 1, whatever the file says.
void clean_bools(const at::Tensor& tensor) {
  auto* bytes = static_cast<uint8_t*>(tensor.mutable_data_ptr());
  std::transform(bytes, bytes + tensor.nbytes(), bytes, [](uint8_t value) { return value == 0 ? 0 : 1; });
}

at::Tensor copy_of(const SafetensorsReader& reader, const TensorInfo& info) {
  at::Tensor tensor = at::empty(info.shape, to_scalar_type(info.dtype));
  const auto bytes = reader.bytes(info);
  INTERNAL_CHECK_EQ(bytes.size(), tensor.nbytes());
  if (bytes.empty()) return tensor;
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  if (info.dtype == DType::kBool) clean_bools(tensor);
  return tensor;
}

DType saved_type(const MadeTensor& tensor, const std::filesystem::path& path) {
  const auto dtype = from_scalar_type(tensor.dtype);
  USER_CHECK(dtype.has_value(), "{}: tensor \"{}\": dtype {} cannot be saved", path.string(), tensor.name,
             toString(tensor.dtype));
  return *dtype;
}
}  // namespace

uint64_t bytes_of(const NamedTensors& tensors) {
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += tensor.nbytes();
  return bytes;
}

at::ScalarType to_scalar_type(DType dtype) {
  for (const auto& [ours, theirs] : kTypes)
    if (ours == dtype) return theirs;
  INTERNAL_CHECK(false, "{} has no ATen type", name_of(dtype));
  return at::ScalarType::Undefined;
}

std::optional<DType> from_scalar_type(at::ScalarType type) {
  for (const auto& [ours, theirs] : kTypes)
    if (theirs == type) return ours;
  return std::nullopt;
}

NamedTensors load_tensors(const std::filesystem::path& path) {
  const SafetensorsReader reader(path);
  NamedTensors tensors;
  for (const auto& info : reader.tensors()) tensors.emplace_back(info.name, copy_of(reader, info));
  return tensors;
}

at::Tensor read_tensor(const TensorFiles& files, const TensorFiles::Tensor& tensor) {
  return read_tensor(files, tensor, {std::vector<int64_t>(tensor.shape.size()), tensor.shape});
}

at::Tensor read_tensor(const TensorFiles& files, const TensorFiles::Tensor& tensor, const Box& box) {
  at::Tensor made = at::empty(box.sizes, to_scalar_type(tensor.dtype));
  if (made.numel() == 0) return made;
  files.read(tensor, box, {static_cast<std::byte*>(made.mutable_data_ptr()), made.nbytes()});
  if (tensor.dtype == DType::kBool) clean_bools(made);
  return made;
}

NamedTensors load_tensors(const TensorFiles& files) {
  NamedTensors tensors;
  for (const auto& tensor : files.tensors()) tensors.emplace_back(tensor.name, read_tensor(files, tensor));
  return tensors;
}

NamedTensors load_model_tensors(const std::filesystem::path& directory) {
  return load_tensors(TensorFiles(directory, kModelFiles));
}

void visit_model_tensors(const std::filesystem::path& directory,
                         const std::function<void(const std::string& name, const at::Tensor& tensor)>& visit) {
  const TensorFiles files(directory, kModelFiles);
  for (const auto& tensor : files.tensors()) visit(tensor.name, read_tensor(files, tensor));
}

MadeTensors made_of(const NamedTensors& tensors) {
  MadeTensors made;
  for (const auto& [name, tensor] : tensors)
    made.push_back({name, tensor.scalar_type(), tensor.sizes().vec(), [tensor = tensor] { return tensor; }});
  return made;
}

MadeTensors made_of(const TensorFiles& files) {
  MadeTensors made;
  for (const auto& tensor : files.tensors())
    made.push_back({tensor.name, to_scalar_type(tensor.dtype), tensor.shape,
                    [&files, &tensor] { return read_tensor(files, tensor); }});
  return made;
}

void save_tensors(const std::filesystem::path& path, const MadeTensors& tensors, const SafetensorsMetadata& metadata,
                  FileSystem& files) {
  at::Tensor kept;  // the one that is being written
  std::vector<TensorSource> sources;
  for (const MadeTensor& tensor : tensors)
    sources.push_back({tensor.name, saved_type(tensor, path), tensor.shape, [&kept, &tensor] {
                         kept.reset();
                         kept = tensor.make().detach().resolve_conj().resolve_neg().cpu().contiguous();
                         return std::span(static_cast<const std::byte*>(kept.const_data_ptr()), kept.nbytes());
                       }});
  write_safetensors(path, std::move(sources), metadata, files);
}

void save_tensors(const std::filesystem::path& path, const NamedTensors& tensors, const SafetensorsMetadata& metadata,
                  FileSystem& files) {
  save_tensors(path, made_of(tensors), metadata, files);
}

void save_model_tensors(const std::filesystem::path& directory, const MadeTensors& weights,
                        std::optional<at::ScalarType> dtype, uint64_t max_shard_bytes, FileSystem& files) {
  std::vector<NamedBytes> sizes;
  int64_t elements = 0;
  for (const MadeTensor& tensor : weights) {
    const int64_t count = c10::multiply_integers(tensor.shape);
    sizes.push_back({tensor.name, static_cast<uint64_t>(count) * at::elementSize(dtype.value_or(tensor.dtype))});
    elements += count;
  }
  const std::vector<ModelShard> shards = cut_shards(sizes, max_shard_bytes);
  for (const ModelShard& shard : shards) {
    MadeTensors converted;
    for (const size_t index : shard.tensors) {
      const MadeTensor& tensor = weights[index];
      const at::ScalarType to = dtype.value_or(tensor.dtype);
      converted.push_back({tensor.name, to, tensor.shape, [&tensor, to] { return tensor.make().detach().to(to); }});
    }
    save_tensors(directory / shard.file, converted, {{"format", "pt"}}, files);
  }
  if (shards.size() > 1) write_file_synced(directory / kIndexName, index_json(sizes, shards, elements), files);
}

void save_model_parts(const std::filesystem::path& directory, const std::vector<NamedTensors>& parts,
                      FileSystem& files) {
  std::vector<NamedBytes> sizes;
  std::vector<ModelShard> shards;
  int64_t elements = 0;
  for (const NamedTensors& part : parts) {
    if (part.empty()) continue;
    ModelShard& shard = shards.emplace_back();
    for (const auto& [name, tensor] : part) {
      shard.tensors.push_back(sizes.size());
      sizes.push_back({name, tensor.nbytes()});
      elements += tensor.numel();
    }
  }
  if (shards.empty()) shards.emplace_back();
  name_shards(shards);
  size_t at = 0;
  for (const NamedTensors& part : parts)
    if (!part.empty()) save_tensors(directory / shards[at++].file, part, {{"format", "pt"}}, files);
  if (at == 0) save_tensors(directory / shards[0].file, NamedTensors(), {{"format", "pt"}}, files);
  if (shards.size() > 1) write_file_synced(directory / kIndexName, index_json(sizes, shards, elements), files);
}

void save_model_tensors(const std::filesystem::path& directory, const NamedTensors& weights, at::ScalarType dtype,
                        uint64_t max_shard_bytes, FileSystem& files) {
  save_model_tensors(directory, made_of(weights), dtype, max_shard_bytes, files);
}

}  // namespace stepc
