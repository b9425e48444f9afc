// Safetensors files, torch-free. The reader maps a file and trusts nothing in it; the writer gives the bytes that the
// Python package gives: tensors ordered by dtype, then by name, the header padded with spaces to 8 bytes.
//
//   | header length, u64 | header: JSON {name: {dtype, shape, data_offsets}} | data: the tensors, no gap, no overlap |
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "ir/dtype.h"

namespace stepc {

using SafetensorsMetadata = std::map<std::string, std::string>;  // the header's __metadata__

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes within the data part
};

class SafetensorsReader {
 public:
  // Checks the whole header: afterwards every tensor's bytes are there and as many as its shape says.
  explicit SafetensorsReader(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  // In the order of their bytes.
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const { return tensors_; }
  // nullptr if there is none.
  [[nodiscard]] const TensorInfo* find(std::string_view name) const;
  // Valid for the reader's life; not aligned.
  [[nodiscard]] std::span<const std::byte> bytes(const TensorInfo& info) const;
  // Lets go of the memory that they take; who looks at them again has them read from the file again.
  void let_go(const TensorInfo& info) const;
  [[nodiscard]] const SafetensorsMetadata& metadata() const { return metadata_; }

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::span<const std::byte> data_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
  SafetensorsMetadata metadata_;
};

// The weights of a Hugging Face directory: model.safetensors, or the shards that model.safetensors.index.json names.
// With an index every tensor of it is in its shard, and no tensor is in two.
std::vector<SafetensorsReader> open_safetensors_model(const std::filesystem::path& directory);

struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // row-major, little-endian
};

// One whose bytes are asked for when they are written: they need stay only until the next one's are.
struct TensorSource {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::function<std::span<const std::byte>()> bytes;
};

// Written beside, synced, renamed into place. Names must be unique and dtypes known to the format (not c128).
void write_safetensors(const std::filesystem::path& path, std::vector<TensorView> tensors,
                       const SafetensorsMetadata& metadata = {}, FileSystem& files = system_files());
void write_safetensors(const std::filesystem::path& path, std::vector<TensorSource> tensors,
                       const SafetensorsMetadata& metadata = {}, FileSystem& files = system_files());

}  // namespace stepc
