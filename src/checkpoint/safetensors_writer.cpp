#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_dtype.h"

namespace stepc {

namespace {
using OrderedJson = nlohmann::ordered_json;  // members in the order of their bytes, as other writers have them

uint64_t bytes_of(const TensorSource& tensor) {
  auto bytes = static_cast<uint64_t>(size_of(tensor.dtype));
  for (const int64_t dim : tensor.shape) bytes *= static_cast<uint64_t>(dim);
  return bytes;
}

std::string header_of(const std::vector<TensorSource>& tensors, const SafetensorsMetadata& metadata) {
  OrderedJson::object_t header;  // a plain vector underneath: push_back, for emplace would search all keys
  if (!metadata.empty()) header.push_back({"__metadata__", OrderedJson(metadata)});
  uint64_t begin = 0;
  for (const auto& tensor : tensors) {
    const uint64_t end = begin + bytes_of(tensor);
    header.push_back({tensor.name, OrderedJson{{"dtype", *safetensors_name(tensor.dtype)},
                                               {"shape", tensor.shape},
                                               {"data_offsets", {begin, end}}}});
    begin = end;
  }
  std::string text = OrderedJson(std::move(header)).dump();
  constexpr size_t kAlignment = 8;
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  return text;
}
}  // namespace

void write_safetensors(const std::filesystem::path& path, std::vector<TensorView> tensors,
                       const SafetensorsMetadata& metadata, FileSystem& files) {
  std::vector<TensorSource> sources;
  for (TensorView& view : tensors) {
    sources.push_back(
        {std::move(view.name), view.dtype, std::move(view.shape), [bytes = view.bytes] { return bytes; }});
    const TensorSource& source = sources.back();
    INTERNAL_CHECK_EQ(view.bytes.size(), bytes_of(source), "tensor {}", source.name);
  }
  write_safetensors(path, std::move(sources), metadata, files);
}

void write_safetensors(const std::filesystem::path& path, std::vector<TensorSource> tensors,
                       const SafetensorsMetadata& metadata, FileSystem& files) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorSource& a, const TensorSource& b) {
    const int rank_a = safetensors_rank(a.dtype);
    const int rank_b = safetensors_rank(b.dtype);
    return rank_a != rank_b ? rank_a > rank_b : a.name < b.name;
  });
  for (const auto& tensor : tensors) {
    INTERNAL_CHECK(tensor.name != "__metadata__", "that name is the format's own");
    USER_CHECK(safetensors_name(tensor.dtype).has_value(), "{}: tensor \"{}\": safetensors has no dtype {}",
               path.string(), tensor.name, name_of(tensor.dtype));
  }
  std::vector<std::string_view> names;
  for (const auto& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  INTERNAL_CHECK(std::adjacent_find(names.begin(), names.end()) == names.end(), "two tensors have one name");

  const std::string header = header_of(tensors, metadata);
  const uint64_t header_bytes = header.size();
  FileWriter writer(path, files);
  writer.write(std::as_bytes(std::span(&header_bytes, 1)));
  writer.write(header);
  for (const auto& tensor : tensors) {
    const std::span<const std::byte> bytes = tensor.bytes();
    INTERNAL_CHECK_EQ(bytes.size(), bytes_of(tensor), "tensor {}", tensor.name);
    writer.write(bytes);
  }
  writer.commit();
}

}  // namespace stepc
