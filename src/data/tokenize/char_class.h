// What the split patterns ask of a character: Unicode's letters (L*), numbers (N*) and White_Space, after utf8proc.
#pragma once

#include <cstdint>
#include <string_view>

namespace stepc {

enum class CharClass : uint8_t {
  kLetter,
  kNumber,
  kSpace,
  kOther,    // everything else, unassigned code points too
  kInvalid,  // a byte that begins no UTF-8 character
};

CharClass class_of(char32_t value);
bool is_white_space(char32_t value);
// \w: Alphabetic, marks, decimal digits, connectors and joiners.
bool is_word_char(char32_t value);

struct ClassedChar {
  CharClass kind;
  uint8_t bytes;  // 1 for an invalid byte
};
ClassedChar classed_char_at(std::string_view text, size_t at);

}  // namespace stepc
