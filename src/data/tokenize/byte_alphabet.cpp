#include "data/tokenize/byte_alphabet.h"

#include <array>

#include "data/utf8.h"

namespace stepc {

namespace {
constexpr size_t kBytes = 256;
constexpr size_t kChars = 256 + 68;  // the largest character plus one

constexpr bool stands_for_itself(size_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<char32_t, kBytes> make_chars() {
  std::array<char32_t, kBytes> chars = {};
  char32_t next = kBytes;
  for (size_t byte = 0; byte < kBytes; ++byte)
    chars[byte] = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
  return chars;
}

constexpr std::array<char32_t, kBytes> kCharOfByte = make_chars();

constexpr std::array<int16_t, kChars> make_bytes() {
  std::array<int16_t, kChars> bytes = {};
  for (auto& byte : bytes) byte = -1;
  for (size_t byte = 0; byte < kBytes; ++byte) bytes[kCharOfByte[byte]] = static_cast<int16_t>(byte);
  return bytes;
}

constexpr std::array<int16_t, kChars> kByteOfChar = make_bytes();
}  // namespace

char32_t alphabet_char(uint8_t byte) { return kCharOfByte[byte]; }

std::string alphabet_text(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) append_utf8(text, alphabet_char(static_cast<uint8_t>(byte)));
  return text;
}

std::optional<std::string> alphabet_bytes(std::string_view text) {
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char next = decode_utf8(text, at);
    if (next.bytes == 0 || next.value >= kChars || kByteOfChar[next.value] < 0) return std::nullopt;
    bytes += static_cast<char>(kByteOfChar[next.value]);
    at += next.bytes;
  }
  return bytes;
}

}  // namespace stepc
