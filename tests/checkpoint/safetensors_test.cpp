#include "checkpoint/safetensors.h"

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

template <class T>
TensorView view_of(const std::string& name, DType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  return {name, dtype, std::move(shape), std::as_bytes(std::span(values))};
}

TEST(Safetensors, RoundTrip) {
  const TempDir dir;
  const std::vector<float> floats = {1, 2, 3, 4, 5, 6};
  const std::vector<uint8_t> bytes = {7, 8, 9};
  write_safetensors(
      dir / "a.safetensors",
      {view_of("z", DType::kU8, {3}, bytes), view_of("b", DType::kF32, {2, 3}, floats),
       view_of("a", DType::kF32, {}, std::vector<float>{9.5F}), view_of<float>("none", DType::kF32, {0, 4}, {})},
      {{"format", "pt"}});
  const SafetensorsReader reader(dir / "a.safetensors");
  EXPECT_EQ(reader.metadata(), (SafetensorsMetadata{{"format", "pt"}}));
  ASSERT_EQ(reader.tensors().size(), 4U);
  const TensorInfo* b = reader.find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(std::memcmp(reader.bytes(*b).data(), floats.data(), 24), 0);
  EXPECT_EQ(reader.find("a")->shape, std::vector<int64_t>{});
  EXPECT_EQ(reader.bytes(*reader.find("none")).size(), 0U);
  EXPECT_EQ(reader.find("c"), nullptr);
}

// The bytes that the Python package writes: wide dtypes first, then by name, the header padded to 8 bytes.
TEST(Safetensors, WritesTheReferenceBytes) {
  const TempDir dir;
  const std::vector<uint8_t> byte = {7};
  const std::vector<int64_t> wide = {1, 2};
  write_safetensors(dir / "a", {view_of("b", DType::kU8, {1}, byte), view_of("a", DType::kI64, {2}, wide)});
  const std::string header =
      R"({"a":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},"b":{"dtype":"U8","shape":[1],"data_offsets":[16,17]}})";
  const std::string text = read_text(dir / "a", 1000);
  const size_t padded = (header.size() + 7) / 8 * 8;
  ASSERT_EQ(text.size(), 8 + padded + 17);
  EXPECT_EQ(static_cast<uint8_t>(text[0]), padded);
  EXPECT_EQ(text.substr(8, padded), header + std::string(padded - header.size(), ' '));
  EXPECT_EQ(text.back(), 7);
}

TEST(Safetensors, RefusesToWriteNonsense) {
  const TempDir dir;
  const std::vector<float> two = {1, 2};
  EXPECT_THROW(write_safetensors(dir / "a", {view_of("a", DType::kF32, {3}, two)}), InternalError);
  EXPECT_THROW(write_safetensors(dir / "a", {view_of("a", DType::kF32, {2}, two), view_of("a", DType::kC64, {1}, two)}),
               InternalError);
  EXPECT_USER_ERROR(write_safetensors(dir / "a", {view_of("a", DType::kC128, {1}, std::vector<double>{1, 2})}),
                    "safetensors has no dtype c128");
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

class ShardTest : public ::testing::Test {
 protected:
  void shard(const std::string& file, const std::vector<std::string>& names) {
    std::vector<TensorView> views;
    for (const auto& name : names) views.push_back(view_of(name, DType::kU8, {3}, bytes_));
    write_safetensors(dir_ / file, views);
  }
  void index(const std::string& weight_map) {
    write_file_synced(dir_ / "model.safetensors.index.json", R"({"metadata":{},"weight_map":)" + weight_map + "}");
  }

  TempDir dir_;
  std::vector<uint8_t> bytes_ = {1, 2, 3};
};

TEST_F(ShardTest, OneFileOrMany) {
  shard("1.safetensors", {"a", "b"});
  shard("2.safetensors", {"c"});
  index(R"({"a":"1.safetensors","b":"1.safetensors","c":"2.safetensors"})");
  const auto shards = open_safetensors_model(dir_.path());
  ASSERT_EQ(shards.size(), 2U);
  EXPECT_NE(shards[1].find("c"), nullptr);
  shard("model.safetensors", {"d"});
  EXPECT_NE(open_safetensors_model(dir_.path()).at(0).find("d"), nullptr);
}

TEST_F(ShardTest, RefusesABadIndex) {
  EXPECT_USER_ERROR(open_safetensors_model(dir_.path()), "model.safetensors: No such file");
  shard("1.safetensors", {"a", "b"});
  shard("2.safetensors", {"b"});
  index("[]");
  EXPECT_USER_ERROR(open_safetensors_model(dir_.path()), "\"weight_map\" must be an object, found a list");
  index(R"({"a":7})");
  EXPECT_USER_ERROR(open_safetensors_model(dir_.path()), "\"a\" must be text, found 7");
  index(R"({"a":"../1.safetensors"})");
  EXPECT_USER_ERROR(open_safetensors_model(dir_.path()), "is not the name of a safetensors file beside it");
  index(R"({"a":"/etc/passwd"})");
  EXPECT_USER_ERROR(open_safetensors_model(dir_.path()), "is not the name of a safetensors file beside it");
  index(R"({"a":"3.safetensors"})");
  EXPECT_USER_ERROR(open_safetensors_model(dir_.path()), "3.safetensors: No such file");
  index(R"({"z":"1.safetensors"})");
  EXPECT_USER_ERROR(open_safetensors_model(dir_.path()), "tensor \"z\" is not in 1.safetensors");
  index(R"({"a":"1.safetensors","b":"2.safetensors"})");
  EXPECT_USER_ERROR(open_safetensors_model(dir_.path()), "tensor \"b\" is in two files");
}

}  // namespace
}  // namespace stepc
