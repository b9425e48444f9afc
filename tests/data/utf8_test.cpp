#include "data/utf8.h"

#include <string>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "data/tokenize/byte_alphabet.h"

namespace stepc {
namespace {

TEST(Utf8, EveryCharacterRoundTrips) {
  for (char32_t value = 0; value <= 0x10FFFF; ++value) {
    if (value >= 0xD800 && value < 0xE000) continue;
    std::string text;
    append_utf8(text, value);
    const Utf8Char back = decode_utf8(text, 0);
    ASSERT_EQ(back.value, value);
    ASSERT_EQ(back.bytes, text.size());
  }
}

TEST(Utf8, RefusesWhatIsNotStrict) {
  for (const std::string text : {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
                                 "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xC3", "\xE2\x82", "\xE2\x28\xA1"})
    EXPECT_EQ(decode_utf8(text, 0).bytes, 0U) << text;
}

TEST(Utf8, WhatIsNoCharacterIsReplacedAsPythonDoes) {
  const std::string mark = "\xEF\xBF\xBD";
  EXPECT_EQ(well_formed("caf\xC3\xA9 \xF0\x9F\x99\x82"), "caf\xC3\xA9 \xF0\x9F\x99\x82");
  EXPECT_EQ(well_formed("\xFF\x80"), mark + mark);
  EXPECT_EQ(well_formed("a\xE4\xB8z\xE4"), "a" + mark + "z" + mark) << "one for the beginning of a character";
  EXPECT_EQ(well_formed("\xF0\x9F\x99"), mark);
  EXPECT_EQ(well_formed("\xF0\x9F\x99\xF0\x9F"), mark + mark);
  EXPECT_EQ(well_formed("\xE0\x80\x80"), mark + mark + mark) << "no character begins so";
  EXPECT_EQ(well_formed("\xED\xA0\x80\xC3"), mark + mark + mark + mark);
}

TEST(ByteAlphabet, EveryByteRoundTrips) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  EXPECT_EQ(alphabet_bytes(alphabet_text(all)), all);
  EXPECT_EQ(alphabet_text(" a\n"), "\u0120a\u010A");
}

TEST(ByteAlphabet, RefusesOtherCharacters) {
  EXPECT_EQ(alphabet_bytes("a b"), std::nullopt);
  EXPECT_EQ(alphabet_bytes("\u4E2D"), std::nullopt);
  EXPECT_EQ(alphabet_bytes("\xFF"), std::nullopt);
}

}  // namespace
}  // namespace stepc
