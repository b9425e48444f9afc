// Added tokens found in text: the longest at each place, from the left. A token may ask to stand as a word of its own,
// or to take the white space beside it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace stepc {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false, lstrip = false, rstrip = false;
  bool normalized = false;  // looked for in the normalized text, in its own normalized spelling
  bool special = false;
};

class AddedTokenMatcher {
 public:
  // `spelling` is what is looked for; an empty one is never found, of two equal ones the later counts.
  void add(const AddedToken& token, std::string spelling);
  [[nodiscard]] bool empty() const { return empty_; }

  // Calls `text_part` for what lies between the tokens, never with nothing, and `token_part` for the tokens, in order.
  template <class TextPart, class TokenPart>
  void split(std::string_view text, const TextPart& text_part, const TokenPart& token_part) const;

 private:
  struct Entry {
    std::string spelling;
    AddedToken token;
  };
  [[nodiscard]] const Entry* at(std::string_view text) const;
  static bool stands_alone(std::string_view text, size_t begin, size_t end);
  static size_t before_space(std::string_view text, size_t end);
  static size_t after_space(std::string_view text, size_t begin);

  std::array<std::vector<Entry>, 256> by_byte_;  // longest first
  bool empty_ = true;
};

template <class TextPart, class TokenPart>
void AddedTokenMatcher::split(std::string_view text, const TextPart& text_part, const TokenPart& token_part) const {
  size_t done = 0;
  for (size_t at = empty_ ? text.size() : 0; at < text.size();) {
    const Entry* entry = by_byte_[static_cast<uint8_t>(text[at])].empty() ? nullptr : this->at(text.substr(at));
    if (!entry) {
      ++at;
      continue;
    }
    const size_t match_begin = at;
    const size_t match_end = at += entry->spelling.size();
    if (entry->token.single_word && !stands_alone(text, match_begin, match_end)) continue;
    size_t begin = match_begin;
    if (entry->token.lstrip) begin = std::max(before_space(text, begin), done);
    if (begin > done) text_part(text.substr(done, begin - done), done);
    token_part(entry->token.id);
    done = entry->token.rstrip ? after_space(text, match_end) : match_end;
  }
  if (done < text.size()) text_part(text.substr(done), done);
}

}  // namespace stepc
