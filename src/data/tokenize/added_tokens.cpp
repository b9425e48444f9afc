#include "data/tokenize/added_tokens.h"

#include "data/tokenize/char_class.h"
#include "data/utf8.h"

namespace stepc {

namespace {
bool is_word_at(std::string_view text, size_t at) {
  const Utf8Char next = decode_utf8(text, at);
  return next.bytes > 0 && is_word_char(next.value);
}
}  // namespace

void AddedTokenMatcher::add(const AddedToken& token, const std::string& spelling) {
  if (spelling.empty()) return;
  spellings_.insert(spelling, static_cast<int32_t>(tokens_.size()));
  begins_one_[static_cast<uint8_t>(spelling[0])] = true;
  tokens_.push_back(token);
}

AddedTokenMatcher::Match AddedTokenMatcher::longest_at(std::string_view text) const {
  Match match;
  spellings_.prefixes(text, [&](size_t bytes, int32_t index) { match = {&tokens_[index], bytes}; });
  return match;
}

bool AddedTokenMatcher::stands_alone(std::string_view text, size_t begin, size_t end) {
  const bool word_before = begin > 0 && is_word_at(text, character_before(text, begin));
  const bool word_after = end < text.size() && is_word_at(text, end);
  return !word_before && !word_after;
}

size_t AddedTokenMatcher::before_space(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t begin = character_before(text, end);
    if (classed_char_at(text, begin).kind != CharClass::kSpace) break;
    end = begin;
  }
  return end;
}

size_t AddedTokenMatcher::after_space(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const ClassedChar next = classed_char_at(text, begin);
    if (next.kind != CharClass::kSpace) break;
    begin += next.bytes;
  }
  return begin;
}

}  // namespace stepc
