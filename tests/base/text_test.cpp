#include "base/text.h"

#include <gtest/gtest.h>

namespace stepc {
namespace {

TEST(Text, HumanBytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(uint64_t{3} << 30), "3.0 GiB");
  EXPECT_EQ(human_bytes(uint64_t{5000} << 40), "5000.0 TiB");
}

TEST(Text, HumanSeconds) {
  EXPECT_EQ(human_seconds(0.25), "0.2s");
  EXPECT_EQ(human_seconds(12.4), "12s");
  EXPECT_EQ(human_seconds(65), "1m05s");
  EXPECT_EQ(human_seconds(7380), "2h03m");
  EXPECT_EQ(human_seconds(-1), "?");
}

TEST(Text, HumanCount) {
  EXPECT_EQ(human_count(512), "512");
  EXPECT_EQ(human_count(10.2e6), "10.2 M");
  EXPECT_EQ(human_count(134e6), "134 M");
}

TEST(Text, SplitKeepsEmptyParts) {
  EXPECT_EQ(split("a,,b,", ','), (std::vector<std::string>{"a", "", "b", ""}));
  EXPECT_EQ(split("", ','), std::vector<std::string>{""});
}

TEST(Text, Trim) {
  EXPECT_EQ(trim(" \ta b\n"), "a b");
  EXPECT_EQ(trim(" \n"), "");
}

TEST(Text, NearestFindsTyposOnly) {
  const std::vector<std::string> keys = {"learning_rate", "batch_size", "seed"};
  EXPECT_EQ(nearest("learing_rate", keys), "learning_rate");
  EXPECT_EQ(nearest("sed", keys), "seed");
  EXPECT_EQ(nearest("warmup", keys), std::nullopt);
}

TEST(Text, ReadsSizesAsItWritesThem) {
  EXPECT_EQ(parse_bytes("4096 B"), 4096U);
  EXPECT_EQ(parse_bytes("1.5 MiB"), 1536U * 1024);
  EXPECT_EQ(parse_bytes("12GiB"), uint64_t{12} << 30);
  for (const char* wrong : {"", "GiB", "12", "12 GB", "-1 GiB", "1e30 TiB", "nan B", "inf B", "12GiB and more"})
    EXPECT_EQ(parse_bytes(wrong), std::nullopt) << wrong;
}

}  // namespace
}  // namespace stepc
