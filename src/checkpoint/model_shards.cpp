#include "checkpoint/model_shards.h"

#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/check.h"

namespace stepc {

std::vector<ModelShard> cut_shards(const std::vector<NamedBytes>& tensors, uint64_t max_bytes) {
  INTERNAL_CHECK_LT(0U, max_bytes);
  std::vector<ModelShard> shards;
  ModelShard open;
  uint64_t open_bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t bytes = tensors[i].bytes;
    if (bytes > max_bytes) {
      shards.push_back({{}, {i}});
      continue;
    }
    if (open_bytes + bytes > max_bytes) {
      shards.push_back(std::exchange(open, {}));
      open_bytes = 0;
    }
    open.tensors.push_back(i);
    open_bytes += bytes;
  }
  if (!open.tensors.empty() || shards.empty()) shards.push_back(std::move(open));
  name_shards(shards);
  return shards;
}

void name_shards(std::vector<ModelShard>& shards) {
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file =
        shards.size() == 1 ? std::string(kSingleName) : str("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  }
}

std::string index_json(const std::vector<NamedBytes>& tensors, const std::vector<ModelShard>& shards,
                       int64_t elements) {
  uint64_t total = 0;
  std::map<std::string, std::string> files;
  for (const ModelShard& shard : shards) {
    for (const size_t index : shard.tensors) {
      files[tensors[index].name] = shard.file;
      total += tensors[index].bytes;
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_parameters", elements}, {"total_size", total}}},
                                {"weight_map", files}};
  return index.dump(2) + "\n";
}

}  // namespace stepc
