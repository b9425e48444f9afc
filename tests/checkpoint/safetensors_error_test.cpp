// Every damaged safetensors file is a UserError that says what is wrong.
#include <cstring>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "checkpoint/safetensors.h"
#include "checkpoint/tensors.h"
#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

std::string file_of(const std::string& header, size_t data_bytes) {
  const uint64_t size = header.size();
  std::string text(sizeof size, '\0');
  std::memcpy(text.data(), &size, sizeof size);
  return text + header + std::string(data_bytes, 'x');
}

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

class SafetensorsError : public ::testing::Test {
 protected:
  // Loads into tensors: a shape that the header check lets through must be one that LibTorch takes.
  void load(const std::string& text) {
    write_file_synced(dir_ / "a.safetensors", text);
    load_tensors(dir_ / "a.safetensors");
  }
  void load_header(const std::string& header, size_t data_bytes = 8) { load(file_of(header, data_bytes)); }

  TempDir dir_;
};

TEST_F(SafetensorsError, Length) {
  EXPECT_USER_ERROR(load(""), "0 bytes are too few");
  EXPECT_USER_ERROR(load("1234567"), "7 bytes are too few");
  EXPECT_USER_ERROR(load(std::string(8, '\xFF')), "header of 18446744073709551615 bytes");
  EXPECT_USER_ERROR(load(std::string("\x40\0\0\0\0\0\0\0{}", 10)),
                    "header of 64 bytes in a file of 10: it was cut off");
  EXPECT_USER_ERROR(load(std::string("\0\xE1\xF5\x05\0\0\0\0{}", 10)), "header of 100000000 bytes in a file of 10");
  EXPECT_USER_ERROR(load(std::string(8, '\0')), "not a JSON object");
}

TEST_F(SafetensorsError, Header) {
  EXPECT_USER_ERROR(load_header("[]"), "not a JSON object");
  EXPECT_USER_ERROR(load_header(" {}"), "not a JSON object");
  EXPECT_USER_ERROR(load_header("{"), "not valid JSON");
  EXPECT_USER_ERROR(load_header("{\"\xFF\":1}"), "not valid JSON");
  EXPECT_USER_ERROR(load_header("{}x"), "not valid JSON");
  std::string deep = "{\"a\":";
  deep += std::string(1'000'000, '[');
  EXPECT_USER_ERROR(load_header(deep), "nested more than");
  EXPECT_USER_ERROR(load_header(R"({"__metadata__":{},"__metadata__":{}})"), "duplicate key \"__metadata__\"");
  EXPECT_USER_ERROR(load_header("{}"), "bytes that belong to no tensor");
  EXPECT_USER_ERROR(load_header(R"({"__metadata__":[]})"), "__metadata__ must be an object");
  EXPECT_USER_ERROR(load_header(R"({"__metadata__":{"a":1}})"), "__metadata__ \"a\" must be text, found 1");
  EXPECT_NO_THROW(load_header("{}", 0));
  EXPECT_NO_THROW(load_header("{}   \n", 0));
}

TEST_F(SafetensorsError, Tensor) {
  const auto one = [&](const std::string& entry) { load_header(R"({"a":)" + entry + "}"); };
  EXPECT_NO_THROW(one(tensor(R"("F32")", "[2]", "[0,8]")));
  EXPECT_USER_ERROR(one("7"), "tensor \"a\": expected an object, found 7");
  EXPECT_USER_ERROR(one("{}"), "\"dtype\" is missing");
  EXPECT_USER_ERROR(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})"), "unknown field \"x\"");
  EXPECT_USER_ERROR(one(tensor("7", "[2]", "[0,8]")), "\"dtype\" must be text");
  EXPECT_USER_ERROR(one(tensor(R"("U16")", "[4]", "[0,8]")), "dtype \"U16\" is not supported");
  EXPECT_USER_ERROR(one(tensor(R"("f32")", "[2]", "[0,8]")), "dtype \"f32\" is not supported");
  EXPECT_USER_ERROR(one(tensor(R"("F32")", "2", "[0,8]")), "\"shape\" must be a list");
  EXPECT_USER_ERROR(one(tensor(R"("F32")", "[-2]", "[0,8]")), "-2 is no dimension");
  EXPECT_USER_ERROR(one(tensor(R"("F32")", "[2.0]", "[0,8]")), "2.0 is no dimension");
  EXPECT_USER_ERROR(one(tensor(R"("F32")", "[null]", "[0,8]")), "null is no dimension");
  EXPECT_USER_ERROR(one(tensor(R"("F32")", "[18446744073709551615]", "[0,8]")), "is no dimension");
  EXPECT_USER_ERROR(one(tensor(R"("F32")", "[1]", "[0,8]")), "data_offsets hold 8 bytes, dtype and shape need 4");
  EXPECT_USER_ERROR(one(tensor(R"("F32")", "[2]", "[0]")), "two whole numbers");
  EXPECT_USER_ERROR(one(tensor(R"("F32")", "[2]", "[0,-8]")), "two whole numbers");
  EXPECT_USER_ERROR(one(tensor(R"("F32")", "[2]", "[0,8.0]")), "two whole numbers");
  EXPECT_USER_ERROR(one(tensor(R"("F32")", "[2]", "[8,0]")), "run backwards");
}

TEST_F(SafetensorsError, ShapesThatOverflow) {
  const auto shape = [&](const std::string& shape, const std::string& offsets) {
    load_header(R"({"a":)" + tensor(R"("F64")", shape, offsets) + "}", 0);
  };
  EXPECT_USER_ERROR(shape("[4294967296,4294967296]", "[0,0]"), "too many elements");
  EXPECT_USER_ERROR(shape("[2305843009213693952]", "[0,0]"), "is no dimension");
  EXPECT_USER_ERROR(shape("[0,4611686018427387904,4611686018427387904]", "[0,0]"), "is no dimension");
  EXPECT_USER_ERROR(shape("[4294967296,4294967296,0]", "[0,0]"), "too many elements");
  EXPECT_NO_THROW(shape("[0,4294967296]", "[0,0]"));
  std::string ones = "[0";
  for (int i = 0; i < 70; ++i) ones += ",1";
  EXPECT_USER_ERROR(shape(ones + "]", "[0,0]"), "71 dimensions, more than 64");
}

TEST_F(SafetensorsError, Offsets) {
  const auto two = [&](const std::string& a, const std::string& b) {
    load_header(R"({"a":)" + tensor(R"("U8")", "[4]", a) + R"(,"b":)" + tensor(R"("U8")", "[4]", b) + "}", 8);
  };
  EXPECT_NO_THROW(two("[4,8]", "[0,4]"));
  EXPECT_USER_ERROR(two("[0,4]", "[0,4]"), "tensors overlap");
  EXPECT_USER_ERROR(two("[0,4]", "[2,6]"), "tensors overlap");
  EXPECT_USER_ERROR(two("[0,4]", "[5,9]"), "there is a hole");
  EXPECT_USER_ERROR(two("[1,5]", "[5,9]"), "there is a hole");
  EXPECT_USER_ERROR(two("[0,4]", "[18446744073709551611,18446744073709551615]"), "there is a hole");
  const std::string half = R"({"a":)" + tensor(R"("U8")", "[4]", "[0,4]") + "}";
  EXPECT_USER_ERROR(load_header(half, 3), "the tensors take 4 bytes, the file has 3: it was cut off");
  EXPECT_USER_ERROR(load_header(half, 5), "bytes that belong to no tensor");
}

TEST_F(SafetensorsError, NamesCannotSpoilTheMessage) {
  const std::string name = R"(a\nb)" + std::string(10'000, 'c');
  EXPECT_USER_ERROR(load_header("{\"" + name + "\":7}"), R"(tensor "a\nbccc)");
}

TEST_F(SafetensorsError, BytesOfABoolBecomeZeroOrOne) {
  load_header(R"({"a":)" + tensor(R"("BOOL")", "[8]", "[0,8]") + "}");
  const at::Tensor loaded = load_tensors(dir_ / "a.safetensors").at(0).second;
  EXPECT_EQ(loaded.view(at::kByte).sum().item<int64_t>(), 8);
}

// Every prefix of a good file is refused, and random damage is refused or loads.
TEST_F(SafetensorsError, CutsAndRandomDamage) {
  const std::string good = file_of(R"({"__metadata__":{"k":"v"},"a":)" + tensor(R"("F32")", "[2,3]", "[0,24]") +
                                       R"(,"b":)" + tensor(R"("I64")", "[1]", "[24,32]") + "}",
                                   32);
  ASSERT_NO_THROW(load(good));
  for (size_t size = 0; size < good.size(); ++size) EXPECT_THROW(load(good.substr(0, size)), UserError) << size;

  std::mt19937 random(1);
  int refused = 0;
  for (int round = 0; round < 500; ++round) {
    std::string damaged = good;
    for (int i = 0; i < 2; ++i) damaged[random() % (good.size() - 32)] = static_cast<char>(random());
    try {
      load(damaged);
    } catch (const UserError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 400);
}

}  // namespace
}  // namespace stepc
