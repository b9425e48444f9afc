// Added tokens found in text: the longest at each place, from the left. A token may ask to stand as a word of its own,
// or to take the white space beside it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenize/model/byte_trie.h"

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
  void add(const AddedToken& token, const std::string& spelling);

  // Calls `text_part` for what lies between the tokens, never with nothing, and `token_part` for the tokens, in order.
  template <class TextPart, class TokenPart>
  void split(std::string_view text, const TextPart& text_part, const TokenPart& token_part) const;

 private:
  struct Match {
    const AddedToken* token = nullptr;
    size_t bytes = 0;
  };
  [[nodiscard]] Match longest_at(std::string_view text) const;
  static bool stands_alone(std::string_view text, size_t begin, size_t end);
  static size_t before_space(std::string_view text, size_t end);
  static size_t after_space(std::string_view text, size_t begin);

  std::vector<AddedToken> tokens_;
  ByteTrie spellings_;                     // to indices of tokens_
  std::array<bool, 256> begins_one_ = {};  // by byte
};

template <class TextPart, class TokenPart>
void AddedTokenMatcher::split(std::string_view text, const TextPart& text_part, const TokenPart& token_part) const {
  size_t done = 0;
  for (size_t at = tokens_.empty() ? text.size() : 0; at < text.size();) {
    const Match match = begins_one_[static_cast<uint8_t>(text[at])] ? longest_at(text.substr(at)) : Match();
    if (!match.token) {
      ++at;
      continue;
    }
    const size_t match_begin = at;
    const size_t match_end = at += match.bytes;
    if (match.token->single_word && !stands_alone(text, match_begin, match_end)) continue;
    size_t begin = match_begin;
    if (match.token->lstrip) begin = std::max(before_space(text, begin), done);
    if (begin > done) text_part(text.substr(done, begin - done), done);
    token_part(match.token->id);
    done = match.token->rstrip ? after_space(text, match_end) : match_end;
  }
  if (done < text.size()) text_part(text.substr(done), done);
}

}  // namespace stepc
