#include "data/utf8.h"

namespace stepc {

Utf8Char decode_utf8(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() - at < bytes) return {};
  char32_t value = lead & (0x7F >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[at + i]);
    if ((next & 0xC0) != 0x80) return {};
    value = value << 6 | (next & 0x3F);
  }
  const bool overlong = (bytes == 3 && value < 0x800) || (bytes == 4 && value < 0x10000);
  const bool surrogate = value >= 0xD800 && value < 0xE000;
  if (overlong || surrogate || value > 0x10FFFF) return {};
  return {value, bytes};
}

namespace {
// How many bytes at text[at], where no character begins, are the beginning of one; at least 1.
size_t broken_bytes(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0U; };
  const unsigned lead = byte(0);
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (lead < 0xE0 || lead > 0xF4 || byte(1) < low || byte(1) > high) return 1;
  return lead >= 0xF0 && (byte(2) & 0xC0) == 0x80 ? 3 : 2;
}
}  // namespace

std::string well_formed(std::string_view text) {
  constexpr char32_t kReplacement = 0xFFFD;
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = decode_utf8(text, at).bytes;
    if (bytes > 0) {
      result += text.substr(at, bytes);
      at += bytes;
    } else {
      append_utf8(result, kReplacement);
      at += broken_bytes(text, at);
    }
  }
  return result;
}

size_t character_before(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return begin;
}

void append_utf8(std::string& text, char32_t value) {
  const auto tail = [&](int shift) { text += static_cast<char>(0x80 | (value >> shift & 0x3F)); };
  if (value < 0x80) {
    text += static_cast<char>(value);
  } else if (value < 0x800) {
    text += static_cast<char>(0xC0 | value >> 6);
    tail(0);
  } else if (value < 0x10000) {
    text += static_cast<char>(0xE0 | value >> 12);
    tail(6);
    tail(0);
  } else {
    text += static_cast<char>(0xF0 | value >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace stepc
