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

at::Tensor copy_of(const SafetensorsReader& reader, const TensorInfo& info) {
  at::Tensor tensor = at::empty(info.shape, to_scalar_type(info.dtype));
  const auto bytes = reader.bytes(info);
  INTERNAL_CHECK_EQ(bytes.size(), tensor.nbytes());
  if (bytes.empty()) return tensor;
  if (info.dtype == DType::kBool) {
    // A byte of a C++ bool must be 0 or 1, whatever the file says.
    std::transform(bytes.begin(), bytes.end(), static_cast<uint8_t*>(tensor.mutable_data_ptr()),
                   [](std::byte value) { return value == std::byte{0} ? 0 : 1; });
  } else {
    std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  }
  return tensor;
}
}  // namespace

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

NamedTensors load_model_tensors(const std::filesystem::path& directory) {
  NamedTensors tensors;
  visit_model_tensors(directory,
                      [&](const std::string& name, const at::Tensor& tensor) { tensors.emplace_back(name, tensor); });
  return tensors;
}

void visit_model_tensors(const std::filesystem::path& directory,
                         const std::function<void(const std::string& name, const at::Tensor& tensor)>& visit) {
  for (const auto& reader : open_safetensors_model(directory))
    for (const auto& info : reader.tensors()) {
      const at::Tensor tensor = copy_of(reader, info);
      reader.let_go(info);
      visit(info.name, tensor);
    }
}

void save_tensors(const std::filesystem::path& path, const NamedTensors& tensors, const SafetensorsMetadata& metadata,
                  FileSystem& files) {
  std::vector<at::Tensor> contiguous;  // keeps the views' bytes alive
  std::vector<TensorView> views;
  for (const auto& [name, tensor] : tensors) {
    const auto dtype = from_scalar_type(tensor.scalar_type());
    USER_CHECK(dtype.has_value(), "{}: tensor \"{}\": dtype {} cannot be saved", path.string(), name,
               toString(tensor.scalar_type()));
    contiguous.push_back(tensor.detach().resolve_conj().resolve_neg().cpu().contiguous());
    const at::Tensor& kept = contiguous.back();
    views.push_back({name,
                     *dtype,
                     kept.sizes().vec(),
                     {static_cast<const std::byte*>(kept.const_data_ptr()), static_cast<size_t>(kept.nbytes())}});
  }
  write_safetensors(path, std::move(views), metadata, files);
}

void save_model_tensors(const std::filesystem::path& directory, const NamedTensors& weights, at::ScalarType dtype,
                        uint64_t max_shard_bytes, FileSystem& files) {
  std::vector<NamedBytes> sizes;
  int64_t elements = 0;
  for (const auto& [name, tensor] : weights) {
    sizes.push_back({name, static_cast<uint64_t>(tensor.numel()) * at::elementSize(dtype)});
    elements += tensor.numel();
  }
  const std::vector<ModelShard> shards = cut_shards(sizes, max_shard_bytes);
  for (const ModelShard& shard : shards) {
    NamedTensors converted;  // of one file at a time
    for (const size_t index : shard.tensors)
      converted.emplace_back(weights[index].first, weights[index].second.detach().to(dtype));
    save_tensors(directory / shard.file, converted, {{"format", "pt"}}, files);
  }
  if (shards.size() > 1) write_file_synced(directory / kIndexName, index_json(sizes, shards, elements), files);
}

}  // namespace stepc
