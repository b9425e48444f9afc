// Tensors in slices over the files of several ranks: what covers a tensor is read whole and in boxes, what does not is
// refused.
#include "checkpoint/tensor_files.h"

#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/files.h"
#include "checkpoint/checkpoint.h"
#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

constexpr const char* kMesh = "dp_shard=2,tp=2";

class TensorFilesTest : public ::testing::Test {
 protected:
  // Of a tensor of int32 that counts, the elements of a box.
  static std::vector<int32_t> counted(const std::vector<int64_t>& shape, const Box& box) {
    std::vector<int32_t> values;
    for (int64_t row = 0; row < box.sizes[0]; ++row)
      for (int64_t column = 0; column < box.sizes[1]; ++column)
        values.push_back(static_cast<int32_t>((box.offsets[0] + row) * shape[1] + box.offsets[1] + column));
    return values;
  }
  void write(int64_t rank, const Box& box, const std::vector<int64_t>& shape = {6, 4}, int64_t number = 0,
             int64_t count = 1, const std::string& mesh = kMesh) {
    const std::vector<int32_t> values = counted(shape, box);
    write_safetensors(dir_ / name_of(SliceFile{rank, "model", number, count}),
                      std::vector<TensorView>{{"w", DType::kI32, box.sizes, std::as_bytes(std::span(values))}},
                      metadata_of_slices({"w"}, {box}, {shape}, mesh));
  }
  // [0, 4) and [4, 6) of the rows, [0, 1) and [1, 4) of the columns.
  void write_all() {
    write(0, {{0, 0}, {4, 1}});
    write(1, {{0, 1}, {4, 3}});
    write(2, {{4, 0}, {2, 1}});
    write(3, {{4, 1}, {2, 3}});
  }
  std::vector<int32_t> read(const Box& box) {
    const TensorFiles files(dir_.path(), kModelFiles);
    std::vector<int32_t> values(static_cast<size_t>(box.sizes[0] * box.sizes[1]));
    files.read(*files.find("w"), box, std::as_writable_bytes(std::span(values)));
    return values;
  }
  void expect_refused(const std::string& why) { EXPECT_USER_ERROR(TensorFiles(dir_.path(), kModelFiles), why); }

  TempDir dir_;
};

TEST_F(TensorFilesTest, EveryBoxIsPutTogether) {
  write_all();
  for (int64_t top = 0; top < 6; ++top)
    for (int64_t left = 0; left < 4; ++left)
      for (int64_t rows = 1; rows <= 6 - top; ++rows)
        for (int64_t columns = 1; columns <= 4 - left; ++columns) {
          const Box box = {{top, left}, {rows, columns}};
          ASSERT_EQ(read(box), counted({6, 4}, box));
        }
}

TEST_F(TensorFilesTest, ARankMayHaveSeveralSlices) {
  write(0, {{0, 0}, {2, 4}}, {6, 4}, 0, 2);
  write(0, {{4, 0}, {2, 4}}, {6, 4}, 1, 2);
  write(1, {{2, 0}, {2, 4}});
  EXPECT_EQ(read({{1, 1}, {4, 2}}), counted({6, 4}, {{1, 1}, {4, 2}}));
}

TEST_F(TensorFilesTest, WhatDoesNotCoverIsRefused) {
  write_all();
  const std::filesystem::path last = dir_ / name_of(SliceFile{3, "model", 0, 1});
  remove_tree(last);
  expect_refused("tensor \"w\": its slices leave a hole: 3 of 4 or more are there");
  write(3, {{4, 2}, {2, 2}});
  expect_refused("leave a hole: 4 of 6 or more");
  write(3, {{4, 1}, {1, 3}});
  expect_refused("the slice at [4, 1] ends at 5 of dimension 0, and the next begins at 6: there is a hole");
  write(3, {{3, 1}, {3, 3}});
  expect_refused("leave a hole: 4 of 6 or more");
  write(3, {{4, 0}, {2, 4}});
  expect_refused("two slices overlap at [4, 0]");
  write(3, {{4, 1}, {2, 3}});
  write(4, {{4, 1}, {2, 3}});
  expect_refused("two slices overlap at [4, 1]");
  for (int64_t rank : {0, 1}) remove_tree(dir_ / name_of(SliceFile{rank, "model", 0, 1}));
  remove_tree(dir_ / name_of(SliceFile{4, "model", 0, 1}));
  expect_refused("no file has its elements before 4 of dimension 0: a slice is missing");
}

TEST_F(TensorFilesTest, FilesThatDisagreeAreRefused) {
  write_all();
  write(3, {{4, 1}, {2, 3}}, {7, 4});
  expect_refused("is i32 of [7, 4] here, and i32 of [6, 4] in another file");
  write(3, {{5, 1}, {2, 3}});
  expect_refused("a slice of [2, 3] at [5, 1] lies outside of its tensor of [6, 4]");
  const std::vector<int32_t> values(6);
  const auto with = [&](const SafetensorsMetadata& metadata) {
    write_safetensors(dir_ / name_of(SliceFile{3, "model", 0, 1}),
                      std::vector<TensorView>{{"w", DType::kI32, {2, 3}, std::as_bytes(std::span(values))}}, metadata);
  };
  with({});
  expect_refused("its __metadata__ lacks DCP_SHARDING_INFO");
  const auto with_info = [&](const std::string& info) { with({{"DCP_SHARDING_INFO", info}}); };
  with_info("[");
  expect_refused("shard-00004-model-00001-of-00001.safetensors");
  with_info("{}");
  expect_refused("DCP_SHARDING_INFO has 0 entries, the file 1 tensors");
  with_info(R"({"v": {"saved_offsets": [4, 1], "shape": [6, 4]}})");
  expect_refused("\"w\" is missing");
  with_info(R"({"w": {"saved_offsets": [4, 1]}})");
  expect_refused("\"shape\" is missing");
  with_info(R"({"w": {"saved_offsets": [4], "shape": [6, 4]}})");
  expect_refused("saved_offsets has 1 entries, the slice 2 dimensions");
  with_info(R"({"w": {"saved_offsets": [4, -1], "shape": [6, 4]}})");
  expect_refused("saved_offsets: -1 is no whole number");
  with_info(R"({"w": {"saved_offsets": [9223372036854775807, 1], "shape": [9223372036854775807, 4]}})");
  expect_refused("lies outside of its tensor of [9223372036854775807, 4]");
  with_info(R"({"w": {"saved_offsets": [4, 1], "shape": [9223372036854775807, 9223372036854775807]}})");
  expect_refused("in another file");
}

TEST_F(TensorFilesTest, NamesOfFiles) {
  const SliceFile file = {11, "adapter_model", 1, 3};
  EXPECT_EQ(name_of(file), "shard-00012-adapter_model-00002-of-00003.safetensors");
  EXPECT_EQ(parse_slice_file(name_of(file)), file);
  for (const char* name : {"model.safetensors", "model-00001-of-00002.safetensors", "shard-00001-.safetensors",
                           "shard-1-model-00001-of-00001.safetensors", "shard-00000-model-00001-of-00001.safetensors",
                           "shard-00001-model-00001-of-00001.safetensors.tmp", "shard-00001-00002-of-00003.safetensors",
                           "shard-99999999999999999999-model-00001-of-00001.safetensors"})
    EXPECT_EQ(parse_slice_file(name), std::nullopt) << name;
}

// What several processes write is one checkpoint, of which every file is verified.
TEST_F(TensorFilesTest, ACheckpointOfSlices) {
  const auto save = [&](const std::string& written_on, const std::string& mesh) {
    CheckpointWriter writer(dir_.path(), {.step = 7});
    ManifestFiles known;
    for (const int64_t rank : {0, 1}) {
      write(rank, {{3 * rank, 0}, {3, 4}}, {6, 4}, 0, 1, written_on);
      std::filesystem::rename(dir_ / name_of(SliceFile{rank, "model", 0, 1}),
                              writer.path() / name_of(SliceFile{rank, "model", 0, 1}));
      known.merge(parse_manifest_files(to_text(hash_files(writer.path(), beginning_of_slice_files(rank)))));
    }
    EXPECT_EQ(known.size(), 2U);
    return writer.commit(known, mesh);
  };
  const std::filesystem::path checkpoint = save("dp_shard=2", "dp_shard=2");
  EXPECT_EQ(read_checkpoint(checkpoint).state.step, 7);
  EXPECT_EQ(read_manifest(checkpoint).mesh, "dp_shard=2");
  save("dp_shard=2", "dp_shard=4");
  EXPECT_USER_ERROR(read_checkpoint(checkpoint),
                    "the mesh is \"dp_shard=4\", but shard-00001-model-00001-of-00001.safetensors was written on "
                    "\"dp_shard=2\"");
  save("tp=1", "");
  EXPECT_USER_ERROR(read_checkpoint(checkpoint), "holds a rank's slices, but the manifest has no mesh");
  save("nothing", "nothing");
  EXPECT_USER_ERROR(read_checkpoint(checkpoint), "manifest.json: mesh \"nothing\": ");
  save("dp_shard=1", "dp_shard=1");
  EXPECT_USER_ERROR(read_checkpoint(checkpoint), "is of rank 1, but the mesh \"dp_shard=1\" has 1 ranks");
  save("dp_shard=2", "dp_shard=2");
  const auto file = checkpoint / name_of(SliceFile{1, "model", 0, 1});
  remove_tree(file);
  EXPECT_USER_ERROR(read_checkpoint(checkpoint), file.string());
  EXPECT_FALSE(search_checkpoints(dir_.path()).latest.has_value());
  CheckpointWriter writer(dir_.path(), {.step = 8});
  EXPECT_USER_ERROR(writer.commit({{"shard-00001-model-00001-of-00001.safetensors", {1, "0123456789abcdef"}}}, "tp=2"),
                    "No such file");
}

}  // namespace
}  // namespace stepc
