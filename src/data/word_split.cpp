#include "data/word_split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/check.h"
#include "data/utf8.h"

namespace stepc {

namespace {
// Unicode's White_Space, spelled out: PCRE2's own \s has U+180E too.
#define SPACE_ R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})"
constexpr std::string_view kPattern =
    "'s|'t|'re|'ve|'m|'ll|'d"
    "| ?\\p{L}+| ?\\p{N}+"
    "| ?[^" SPACE_
    "\\p{L}\\p{N}]+"
    "|[" SPACE_ "]+(?![^" SPACE_ "])|[" SPACE_ "]+";
#undef SPACE_

std::string message_of(int code) {
  std::string text(128, '\0');
  const int length = pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text.data()), text.size());
  text.resize(length > 0 ? static_cast<size_t>(length) : 0);
  return text;
}

struct MatchData {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  MatchData() = default;
  MatchData(const MatchData&) = delete;
  MatchData& operator=(const MatchData&) = delete;
  ~MatchData() { pcre2_match_data_free(data); }
};
}  // namespace

struct WordSplit::Program {
  pcre2_code* code = nullptr;
  Program() {
    int error = 0;
    PCRE2_SIZE at = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern.data()), kPattern.size(), PCRE2_UTF | PCRE2_UCP, &error,
                         &at, nullptr);
    INTERNAL_CHECK(code != nullptr, "at {}: {}", at, message_of(error));
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where it fails the interpreter does the work
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() { pcre2_code_free(code); }
};

WordSplit::WordSplit() : program_(std::make_shared<Program>()) {}

void WordSplit::operator()(std::string_view text, const std::function<void(std::string_view)>& word) const {
  // Cut into runs of valid and of invalid UTF-8: the matcher then need not check, which it would do from each word on.
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin;
    for (size_t bytes = 0; end < text.size() && (bytes = decode_utf8(text, end).bytes) > 0;) end += bytes;
    if (end > begin) split_valid(text.substr(begin, end - begin), word);
    begin = end;
    while (end < text.size() && decode_utf8(text, end).bytes == 0) ++end;
    if (end > begin) word(text.substr(begin, end - begin));
    begin = end;
  }
}

void WordSplit::split_valid(std::string_view text, const std::function<void(std::string_view)>& word) const {
  const MatchData match;
  INTERNAL_CHECK(match.data != nullptr);
  for (size_t begin = 0; begin < text.size();) {
    const int found = pcre2_match(program_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), begin,
                                  PCRE2_NO_UTF_CHECK | PCRE2_ANCHORED, match.data, nullptr);
    // The last alternatives together take any character, so only a limit of the matcher can end here.
    USER_CHECK(found > 0, "cannot split the text into words at byte {}: {}", begin, message_of(found));
    const size_t end = pcre2_get_ovector_pointer(match.data)[1];
    INTERNAL_CHECK_LT(begin, end);
    word(text.substr(begin, end - begin));
    begin = end;
  }
}

}  // namespace stepc
