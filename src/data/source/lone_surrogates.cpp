#include "data/source/lone_surrogates.h"

#include <charconv>
#include <cstdint>

namespace stepc {

namespace {
constexpr size_t kEscapeBytes = 6;  // of \ud83d

// The number of the \u escape that begins at `at`, if one does.
std::optional<uint16_t> escape_at(std::string_view json, size_t at) {
  if (at > json.size() || json.size() - at < kEscapeBytes || json.substr(at, 2) != "\\u") return std::nullopt;
  constexpr int kHexadecimal = 16;
  uint16_t value = 0;
  const char* end = json.data() + at + kEscapeBytes;
  const auto read = std::from_chars(json.data() + at + 2, end, value, kHexadecimal);
  return read.ec == std::errc() && read.ptr == end ? std::optional(value) : std::nullopt;
}

bool is_half(std::optional<uint16_t> value, uint16_t first) {
  constexpr uint16_t kHalves = 0x400;
  return value && *value >= first && *value < first + kHalves;
}
}  // namespace

std::optional<std::string> without_lone_surrogates(std::string_view json) {
  constexpr uint16_t kFirstHigh = 0xD800;
  constexpr uint16_t kFirstLow = 0xDC00;
  std::optional<std::string> repaired;
  for (size_t at = json.find('\\'); at < json.size(); at = json.find('\\', at)) {
    const auto value = escape_at(json, at);
    if (!value) {
      at += 2;  // another escape, whose second character begins none
      continue;
    }
    const bool high = is_half(value, kFirstHigh);
    if (high && is_half(escape_at(json, at + kEscapeBytes), kFirstLow)) {
      at += 2 * kEscapeBytes;
      continue;
    }
    if (high || is_half(value, kFirstLow)) {
      if (!repaired) repaired = json;
      repaired->replace(at, kEscapeBytes, "\\ufffd");
    }
    at += kEscapeBytes;
  }
  return repaired;
}

}  // namespace stepc
