// How the weights of a model are cut into files: the names and the cuts are those of transformers' save_pretrained().
//
//   sizes 3, 2, 9, 1, at most 5     {9} as it is larger than a file may be, {3, 2}, {1}
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace stepc {

inline constexpr const char* kSingleName = "model.safetensors";
inline constexpr const char* kIndexName = "model.safetensors.index.json";
inline constexpr uint64_t kMaxShardBytes = 5'000'000'000;  // as transformers has it

struct NamedBytes {
  std::string name;
  uint64_t bytes = 0;
};

struct ModelShard {
  std::string file;
  std::vector<size_t> tensors;  // indices, rising
};

// One file, under kSingleName, where all fit. A tensor that is larger than `max_bytes` gets a file of its own.
std::vector<ModelShard> cut_shards(const std::vector<NamedBytes>& tensors, uint64_t max_bytes);

// Gives each its file's name, by how many there are.
void name_shards(std::vector<ModelShard>& shards);

// The text of the index: which tensor is in which file.
std::string index_json(const std::vector<NamedBytes>& tensors, const std::vector<ModelShard>& shards, int64_t elements);

}  // namespace stepc
