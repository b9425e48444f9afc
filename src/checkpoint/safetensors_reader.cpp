#include <algorithm>
#include <cstring>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/json.h"
#include "checkpoint/model_shards.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_dtype.h"

namespace stepc {

namespace fs = std::filesystem;

namespace {
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own bound
constexpr uint64_t kMaxIndexBytes = 100'000'000;
constexpr size_t kMaxRank = 64;
constexpr int64_t kMaxElements = std::numeric_limits<int64_t>::max() / 16;  // in bytes it still fits int64_t

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

std::vector<int64_t> shape_of(const Json& entry, const std::string& what) {
  const Json& list = json_array(entry, "shape", what);
  USER_CHECK(list.size() <= kMaxRank, "{}: {} dimensions, more than {}", what, list.size(), kMaxRank);
  std::vector<int64_t> shape;
  int64_t elements = 1;  // empty dimensions counted as 1: strides are products of the others
  for (const Json& item : list) {
    const bool whole = item.is_number_unsigned() && item.get<uint64_t>() <= uint64_t{kMaxElements};
    USER_CHECK(whole, "{}: {} is no dimension of a shape", what, shown(item));
    const auto dim = item.get<int64_t>();
    USER_CHECK(dim <= kMaxElements / elements, "{}: the shape has too many elements", what);
    elements *= std::max<int64_t>(dim, 1);
    shape.push_back(dim);
  }
  return shape;
}

uint64_t bytes_of(const TensorInfo& info) {
  uint64_t bytes = static_cast<uint64_t>(size_of(info.dtype));
  for (const int64_t dim : info.shape) bytes *= static_cast<uint64_t>(dim);
  return bytes;
}

TensorInfo tensor_of(const std::string& name, const Json& entry, const std::string& file) {
  const std::string what = str("{}: tensor {}", file, in_quotes(name));
  USER_CHECK(entry.is_object(), "{}: expected an object, found {}", what, shown(entry));
  for (const auto& [key, value] : entry.items())
    USER_CHECK(key == "dtype" || key == "shape" || key == "data_offsets", "{}: unknown field {}", what, in_quotes(key));

  TensorInfo info;
  info.name = name;
  const std::string& dtype = json_string(entry, "dtype", what);
  const auto known = dtype_from_safetensors(dtype);
  USER_CHECK(known.has_value(), "{}: dtype {} is not supported", what, in_quotes(dtype));
  info.dtype = *known;
  info.shape = shape_of(entry, what);

  const Json& offsets = json_array(entry, "data_offsets", what);
  const bool pair = offsets.size() == 2 && offsets[0].is_number_unsigned() && offsets[1].is_number_unsigned();
  USER_CHECK(pair, "{}: data_offsets must be two whole numbers", what);
  info.begin = offsets[0].get<uint64_t>();
  info.end = offsets[1].get<uint64_t>();
  USER_CHECK(info.begin <= info.end, "{}: data_offsets [{}, {}] run backwards", what, info.begin, info.end);
  USER_CHECK(info.end - info.begin == bytes_of(info), "{}: data_offsets hold {} bytes, dtype and shape need {}", what,
             info.end - info.begin, bytes_of(info));
  return info;
}

SafetensorsMetadata metadata_of(const Json& entry, const std::string& file) {
  USER_CHECK(entry.is_object(), "{}: __metadata__ must be an object, found {}", file, shown(entry));
  SafetensorsMetadata metadata;
  for (const auto& [key, value] : entry.items()) {
    USER_CHECK(value.is_string(), "{}: __metadata__ {} must be text, found {}", file, in_quotes(key), shown(value));
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

// The format's rule: in order of their bytes the tensors cover the data part, each beginning where the last ended.
void check_cover(const std::vector<TensorInfo>& tensors, uint64_t data_bytes, const std::string& file) {
  uint64_t covered = 0;
  for (const auto& info : tensors) {
    USER_CHECK(info.begin == covered, "{}: tensor {} begins at byte {} of the data, expected {}: {}", file,
               in_quotes(info.name), info.begin, covered, info.begin < covered ? "tensors overlap" : "there is a hole");
    covered = info.end;
  }
  USER_CHECK(covered == data_bytes, "{}: the tensors take {} bytes, the file has {}: {}", file, covered, data_bytes,
             covered > data_bytes ? "it was cut off" : "it has bytes that belong to no tensor");
}
}  // namespace

SafetensorsReader::SafetensorsReader(const fs::path& path) : path_(path), file_(path) {
  const std::string file = path.string();
  const auto all = file_.bytes();
  uint64_t header_bytes = 0;
  USER_CHECK(all.size() >= sizeof header_bytes, "{}: {} bytes are too few for a safetensors file", file, all.size());
  std::memcpy(&header_bytes, all.data(), sizeof header_bytes);
  USER_CHECK(header_bytes <= kMaxHeaderBytes, "{}: header of {} bytes, more than the format's {}: not safetensors?",
             file, header_bytes, kMaxHeaderBytes);
  USER_CHECK(header_bytes <= all.size() - sizeof header_bytes, "{}: header of {} bytes in a file of {}: it was cut off",
             file, header_bytes, all.size());

  const std::string_view text = file_.text().substr(sizeof header_bytes, header_bytes);
  USER_CHECK(text.starts_with('{'), "{}: the header is not a JSON object: not safetensors?", file);
  parse_json_members(text, file, [&](const std::string& name, const Json& entry) {
    if (name == "__metadata__") {
      metadata_ = metadata_of(entry, file);
    } else {
      tensors_.push_back(tensor_of(name, entry, file));
    }
  });
  std::sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  data_ = all.subspan(sizeof header_bytes + header_bytes);
  check_cover(tensors_, data_.size(), file);
  for (size_t i = 0; i < tensors_.size(); ++i) by_name_[tensors_[i].name] = i;
}

const TensorInfo* SafetensorsReader::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::span<const std::byte> SafetensorsReader::bytes(const TensorInfo& info) const {
  INTERNAL_CHECK(info.begin <= info.end && info.end <= data_.size(), "{} is not of this file", info.name);
  return data_.subspan(info.begin, info.end - info.begin);
}

void SafetensorsReader::let_go(const TensorInfo& info) const {
  const auto header = static_cast<uint64_t>(data_.data() - file_.bytes().data());
  file_.let_go(header + info.begin, header + info.end);
}

std::vector<SafetensorsReader> open_safetensors_model(const fs::path& directory) {
  const fs::path single = directory / kSingleName;
  const fs::path index = directory / kIndexName;
  std::error_code ignored;
  std::vector<SafetensorsReader> readers;
  if (fs::exists(single, ignored) || !fs::exists(index, ignored)) {
    readers.emplace_back(single);
    return readers;
  }

  const std::string what = index.string();
  const Json json = read_json(index, kMaxIndexBytes);
  std::map<std::string, size_t> shards;  // file name -> reader
  const Json& weight_map = json_object(json, "weight_map", what);
  for (const auto& [name, value] : weight_map.items()) {
    const std::string& file = json_string(weight_map, name, what);
    const bool plain =
        file.ends_with(".safetensors") && file.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
    USER_CHECK(plain, "{}: {} is not the name of a safetensors file beside it", what, in_quotes(file));
    const auto [shard, is_new] = shards.try_emplace(file, readers.size());
    if (is_new) readers.emplace_back(directory / file);
    USER_CHECK(readers[shard->second].find(name), "{}: tensor {} is not in {}", what, in_quotes(name), file);
  }
  std::set<std::string_view> seen;
  for (const auto& reader : readers)
    for (const auto& info : reader.tensors())
      USER_CHECK(seen.insert(info.name).second, "{}: tensor {} is in two files", what, in_quotes(info.name));
  return readers;
}

}  // namespace stepc
