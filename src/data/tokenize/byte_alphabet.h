// GPT-2's alphabet: every byte as one printable character, so that vocabularies of byte strings can be JSON text.
// Printable Latin-1 bytes stand for themselves, the other 68 are U+0100 onwards: a space is written as U+0120.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stepc {

char32_t alphabet_char(uint8_t byte);
// Bytes to their spelling, and back; nullopt if a character is not of the alphabet.
std::string alphabet_text(std::string_view bytes);
std::optional<std::string> alphabet_bytes(std::string_view text);

}  // namespace stepc
