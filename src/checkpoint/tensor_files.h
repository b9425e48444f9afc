// The tensors of a directory, wherever their bytes lie: each in one file, as Hugging Face has them, or in slices over
// the files of the ranks that saved them, in the form of PyTorch's distributed Hugging Face storage. Torch-free; maps
// the files and trusts nothing in them.
//
//   shard-00002-model-00001-of-00001.safetensors     of rank 1; a rank with two slices of a tensor has two files
//     __metadata__: DCP_SHARDING_INFO = {"w": {"saved_offsets": [4, 0], "shape": [8, 16]}}, mesh = "dp_shard=2"
//     w: F32 [4, 16]                                 elements [4, 8) x [0, 16) of w, which is [8, 16] (ours to say)
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"

namespace stepc {

// What the files of a directory are called that hold a model, an adapter, an optimizer's state.
inline constexpr std::string_view kModelFiles = "model";
inline constexpr std::string_view kAdapterFiles = "adapter_model";
inline constexpr std::string_view kOptimizerFiles = "optimizer";
// Among the optimizer's state: the state of the process's default generator.
inline constexpr const char* kGeneratorState = "cpu_generator";
inline constexpr const char* kDeviceGeneratorState = "device_generator";  // beside it, of what is on a device

// A box of a tensor's elements.
struct Box {
  std::vector<int64_t> offsets, sizes;
  bool operator==(const Box&) const = default;
};

class TensorFiles {
 public:
  struct Slice {
    size_t file = 0;
    const TensorInfo* info = nullptr;
    Box box;
  };
  struct Tensor {
    std::string name;
    DType dtype = DType::kF32;
    std::vector<int64_t> shape;
    std::vector<Slice> slices;  // cover it, each element once
    [[nodiscard]] uint64_t bytes() const;
  };

  // `which`: one of the names above. UserError for what is missing, damaged, overlaps or leaves holes.
  TensorFiles(const std::filesystem::path& directory, std::string_view which);

  // Those of one file in the order of their bytes; of several by file, or by name where they are in slices.
  [[nodiscard]] const std::vector<Tensor>& tensors() const { return tensors_; }
  [[nodiscard]] const Tensor* find(std::string_view name) const;
  // Row by row into memory of the box's size. No more of the files stays in memory than it reads.
  void read(const Tensor& tensor, const Box& box, std::span<std::byte> to) const;

 private:
  void add_slices(size_t file);

  std::vector<SafetensorsReader> readers_;
  std::vector<Tensor> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

// The file of a rank's slices.
struct SliceFile {
  int64_t rank = 0;
  std::string which;
  int64_t number = 0, count = 1;
  bool operator==(const SliceFile&) const = default;
};
std::string name_of(const SliceFile& file);
// How the names begin of all files of a rank's slices.
std::string beginning_of_slice_files(int64_t rank);
// nullopt for another name.
std::optional<SliceFile> parse_slice_file(const std::string& name);

// What a file of slices says of itself, beside their bytes.
SafetensorsMetadata metadata_of_slices(const std::vector<std::string>& names, const std::vector<Box>& boxes,
                                       const std::vector<std::vector<int64_t>>& shapes, const std::string& mesh);
inline constexpr const char* kMeshKey = "mesh";

}  // namespace stepc
