#include "train/report/events.h"

#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "tests/temp_dir.h"

namespace stepc::train {
namespace {

// RFC 3720, B.4.
TEST(Crc32c, KnownValues) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43U);
}

// The bytes as protobuf gives them; tests/parity/test_run_files.py reads such files with TensorBoard.
TEST(EventFile, AScalarByteForByte) {
  const TempDir directory;
  const std::string path = (directory / "events").string();
  EventFile file(path);
  std::stringstream before;
  before << std::ifstream(path).rdbuf();
  file.write(300, 1.5, {{"loss", 2.0}});
  std::stringstream after;
  after << std::ifstream(path).rdbuf();
  const std::string record = after.str().substr(before.str().size());
  const std::string event(
      "\x09\0\0\0\0\0\0\xF8\x3F"    // wall_time = 1.5
      "\x10\xAC\x02"                // step = 300
      "\x2A\x0D\x0A\x0B"            // summary { value {
      "\x0A\x04loss\x15\0\0\0\x40"  // tag = "loss", simple_value = 2
      ,
      9 + 3 + 4 + 11);
  ASSERT_EQ(record.size(), 8 + 4 + event.size() + 4);
  EXPECT_EQ(record.substr(0, 8), std::string(1, static_cast<char>(event.size())) + std::string(7, '\0'));
  EXPECT_EQ(record.substr(12, event.size()), event);
}

}  // namespace
}  // namespace stepc::train
