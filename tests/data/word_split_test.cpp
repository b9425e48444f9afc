// The splitters written by hand against the patterns themselves, run by PCRE2.
#include "data/tokenize/word_split.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/check.h"
#include "data/utf8.h"

namespace stepc {
namespace {

// PCRE2's own \s has U+180E and lacks U+0085: Unicode's White_Space is spelled out.
std::string with_white_space(std::string_view regex) {
  const std::string space =
      R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
  std::string result;
  bool in_class = false;
  for (size_t i = 0; i < regex.size(); ++i) {
    const std::string_view two = regex.substr(i, 2);
    if (two == "\\s" || two == "\\S") {
      result += in_class ? space : (two == "\\s" ? "[" : "[^") + space + "]";
      ++i;
      continue;
    }
    in_class = regex[i] == '[' || (in_class && regex[i] != ']');
    result += regex[i];
  }
  return result;
}

// PCRE2 knows no class within a class, and what a pattern leaves out between its words is a word.
std::string whole_regex_of(WordPattern pattern) {
  if (pattern != WordPattern::kBloom) return std::string(regex_of(pattern));
  const std::string word = R"( ?[^(\s|.,!?…。，、।۔،)])";
  return word + "+|(?s:(?!" + word + ").)+";
}

class Oracle {
 public:
  explicit Oracle(WordPattern pattern) {
    const std::string regex = with_white_space(whole_regex_of(pattern));
    int error = 0;
    PCRE2_SIZE at = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex.data()), regex.size(), PCRE2_UTF | PCRE2_UCP, &error, &at,
                          nullptr);
    INTERNAL_CHECK(code_ != nullptr, "at {} of {}", at, regex);
    match_ = pcre2_match_data_create(1, nullptr);
  }
  ~Oracle() {
    pcre2_match_data_free(match_);
    pcre2_code_free(code_);
  }
  Oracle(const Oracle&) = delete;
  Oracle& operator=(const Oracle&) = delete;

  size_t word_end(std::string_view text, size_t begin) {
    const int found = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), begin, PCRE2_ANCHORED,
                                  match_, nullptr);
    INTERNAL_CHECK(found > 0, "{}", found);
    return pcre2_get_ovector_pointer(match_)[1];
  }

 private:
  pcre2_code* code_ = nullptr;
  pcre2_match_data* match_ = nullptr;
};

std::vector<std::string> words(WordPattern pattern, std::string_view text) {
  std::vector<std::string> result;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = word_end(pattern, text, begin);
    result.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return result;
}

std::string random_text(std::mt19937& random) {
  static const std::vector<std::string> kFew = {
      "a",      "B",      "the",    " ",      "  ",         "\n",  "\r",     "\t",      "'",      "'s",
      "'T",     "'re",    "'v",     "ll",     "'ll",        "'LL", "\u017F", "'\u017F", "\u00E9", "\u4E2D",
      "\u00BD", "7",      "1234",   "\u0663", "(",          "|",   "\u060C", "\u06D4",  "\u0964", "\u3001",
      "\uFF0C", ")",      ",",      "?",      "!",          ".",   "\u2026", "\u00A0",  "\u0085", "\u3000",
      "\u180E", "\u200B", "\u0301", "_",      "\U0001F642", "d"};
  std::string text;
  const size_t count = random() % 24;
  for (size_t i = 0; i < count; ++i) text += kFew[random() % kFew.size()];
  return text;
}

class WordSplit : public ::testing::TestWithParam<WordPattern> {};

TEST_P(WordSplit, IsThePattern) {
  Oracle oracle(GetParam());
  std::mt19937 random(1);
  for (int round = 0; round < 20'000; ++round) {
    const std::string text = random_text(random);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = word_end(GetParam(), text, begin);
      ASSERT_EQ(end, oracle.word_end(text, begin))
          << "after " << begin << " bytes of " << ::testing::PrintToString(text);
      begin = end;
    }
  }
}

// PCRE2 10.42 has the properties of Unicode 14; both agree on what was assigned by then.
TEST_P(WordSplit, KnowsEveryCharacter) {
  Oracle oracle(GetParam());
  size_t different = 0;
  for (char32_t value = 1; value < 0x30000; ++value) {
    if (value >= 0xD800 && value < 0xE000) continue;
    std::string text = "a";
    append_utf8(text, value);
    text += "1";
    different += word_end(GetParam(), text, 0) != oracle.word_end(text, 0) ||
                 word_end(GetParam(), text, 1) != oracle.word_end(text, 1);
  }
  EXPECT_LT(different, 10'000U);  // the letters and numbers of Unicode 15 and 16
}

TEST_P(WordSplit, BytesThatAreNotUtf8AreAWord) {
  EXPECT_EQ(words(GetParam(), "ab\xFF\xFE cd"), (std::vector<std::string>{"ab", "\xFF\xFE", " cd"}));
  EXPECT_EQ(words(GetParam(),
                  "a  \x80"
                  "1"),
            (std::vector<std::string>{"a", "  ", "\x80", "1"}));
  EXPECT_EQ(words(GetParam(), "\xE4\xB8"), (std::vector<std::string>{"\xE4\xB8"}));
}

INSTANTIATE_TEST_SUITE_P(All, WordSplit,
                         ::testing::Values(WordPattern::kGpt2, WordPattern::kLlama3, WordPattern::kQwen,
                                           WordPattern::kBloom));

TEST(WordPattern, IsFoundByItsSpelling) {
  EXPECT_EQ(word_pattern_of(regex_of(WordPattern::kQwen)), WordPattern::kQwen);
  EXPECT_EQ(word_pattern_of("\\w+"), std::nullopt);
  EXPECT_EQ(words(WordPattern::kNone, "a b\n"), std::vector<std::string>{"a b\n"});
}

}  // namespace
}  // namespace stepc
