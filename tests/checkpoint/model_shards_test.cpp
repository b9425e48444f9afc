#include "checkpoint/model_shards.h"

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/text.h"
#include "checkpoint/tensors.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

std::vector<std::vector<size_t>> cut(const std::vector<uint64_t>& sizes, uint64_t max_bytes) {
  std::vector<NamedBytes> tensors;
  for (const uint64_t bytes : sizes) tensors.push_back({str("t{}", tensors.size()), bytes});
  std::vector<std::vector<size_t>> parts;
  for (const ModelShard& shard : cut_shards(tensors, max_bytes)) parts.push_back(shard.tensors);
  return parts;
}

using Parts = std::vector<std::vector<size_t>>;

// What huggingface_hub's split_state_dict_into_shards_factory gives for the same sizes.
TEST(PlanShards, CutsWhereTransformersDoes) {
  EXPECT_EQ(cut({3, 2, 9, 1}, 5), (Parts{{2}, {0, 1}, {3}}));
  EXPECT_EQ(cut({3, 2, 9, 1}, 15), (Parts{{0, 1, 2, 3}}));
  EXPECT_EQ(cut({3, 3, 3}, 5), (Parts{{0}, {1}, {2}}));
  EXPECT_EQ(cut({5}, 5), (Parts{{0}}));
  EXPECT_EQ(cut({6}, 5), (Parts{{0}}));
  EXPECT_EQ(cut({}, 5), (Parts{{}}));
}

TEST(PlanShards, Names) {
  EXPECT_EQ(cut_shards({{"a", 1}}, 5).front().file, "model.safetensors");
  const auto two = cut_shards({{"a", 4}, {"b", 4}}, 5);
  EXPECT_EQ(two[0].file, "model-00001-of-00002.safetensors");
  EXPECT_EQ(two[1].file, "model-00002-of-00002.safetensors");
}

TEST(SaveModelTensors, ReadsBackFromOneFileOrMany) {
  NamedTensors weights;
  for (int i = 0; i < 5; ++i)
    weights.emplace_back(str("layer.{}", i), at::arange(i * 100, i * 100 + 10 * (i + 1), at::kFloat));
  for (const uint64_t most : {uint64_t{1}, uint64_t{200}, uint64_t{1000}}) {
    const TempDir dir;
    save_model_tensors(dir.path(), weights, at::kFloat, most);
    EXPECT_EQ(std::filesystem::exists(dir / kSingleName), most == 1000);
    EXPECT_EQ(std::filesystem::exists(dir / kIndexName), most < 1000);
    std::map<std::string, at::Tensor> loaded;
    for (const auto& [name, tensor] : load_model_tensors(dir.path())) loaded[name] = tensor;
    ASSERT_EQ(loaded.size(), weights.size());
    for (const auto& [name, tensor] : weights) EXPECT_TRUE(at::equal(loaded.at(name), tensor)) << name;
  }
}

TEST(SaveModelTensors, ConvertsTheDtype) {
  const TempDir dir;
  save_model_tensors(dir.path(), {{"a", at::full({4}, 1.0 / 3, at::kFloat)}}, at::kBFloat16, kMaxShardBytes);
  const NamedTensors loaded = load_model_tensors(dir.path());
  EXPECT_TRUE(at::equal(loaded.front().second, at::full({4}, 1.0 / 3, at::kFloat).to(at::kBFloat16)));
}

}  // namespace
}  // namespace stepc
