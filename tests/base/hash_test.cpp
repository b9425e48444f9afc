#include "base/hash.h"

#include <string_view>

#include <gtest/gtest.h>

namespace stepc {
namespace {

std::string hash_of(std::string_view text) { return hash_text(hash_bytes(std::as_bytes(std::span(text)))); }

// Reference values of XXH3_64bits: files written today are checked by every later version.
TEST(Hash, IsXxh3) {
  EXPECT_EQ(hash_of(""), "2d06800538d394c2");
  EXPECT_NE(hash_of("a"), hash_of("b"));
  EXPECT_EQ(hash_text(0xAB), "00000000000000ab");
}

}  // namespace
}  // namespace stepc
