// UTF-8, one character at a time. Strict: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace stepc {

struct Utf8Char {
  char32_t value = 0;
  size_t bytes = 0;  // 0: no valid character begins there
};

// The character that begins at text[at]; at < text.size().
Utf8Char decode_utf8(std::string_view text, size_t at);
// Where the character before `end` begins; end > 0.
size_t character_before(std::string_view text, size_t end);
void append_utf8(std::string& text, char32_t value);
// The text with U+FFFD for what is no character: one for each longest beginning of a character, as Python's
// errors="replace" and Rust's from_utf8_lossy put it.
std::string well_formed(std::string_view text);

}  // namespace stepc
