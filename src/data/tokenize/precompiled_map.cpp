#include "data/tokenize/precompiled_map.h"

#include <array>
#include <cstring>

#include <utf8proc.h>

#include "base/check.h"
#include "data/utf8.h"

namespace stepc {

namespace {
// A unit of the double array, in the layout of darts-clone.
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t value_of(uint32_t unit) { return unit & 0x7FFF'FFFF; }
uint32_t label_of(uint32_t unit) { return unit & (0x8000'0000 | 0xFF); }
uint32_t offset_of(uint32_t unit) { return unit >> 10 << ((unit & 1U << 9) >> 6); }
}  // namespace

PrecompiledMap::PrecompiledMap(std::string_view bytes, std::string_view what) {
  uint32_t trie_bytes = 0;
  USER_CHECK(bytes.size() >= sizeof trie_bytes, "{}: the character map has {} bytes, too few", what, bytes.size());
  std::memcpy(&trie_bytes, bytes.data(), sizeof trie_bytes);
  bytes.remove_prefix(sizeof trie_bytes);
  USER_CHECK(trie_bytes <= bytes.size() && trie_bytes % sizeof(uint32_t) == 0 && trie_bytes > 0,
             "{}: the character map says its trie has {} bytes, and {} follow", what, trie_bytes, bytes.size());
  trie_.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(trie_.data(), bytes.data(), trie_bytes);
  replacements_ = bytes.substr(trie_bytes);
  for (size_t at = 0; at < replacements_.size();) {
    const size_t step = decode_utf8(replacements_, at).bytes;
    USER_CHECK(step > 0, "{}: the character map has a replacement that is not UTF-8", what);
    at += step;
  }
}

// The first leaf on the way down is the shortest entry. A trie that leads outside of itself has no entry there.
std::optional<std::string_view> PrecompiledMap::replacement(std::string_view key) const {
  uint32_t at = offset_of(trie_[0]);
  for (const char c : key) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte == 0) break;
    at ^= byte;
    if (at >= trie_.size() || label_of(trie_[at]) != byte) break;
    const uint32_t unit = trie_[at];
    at ^= offset_of(unit);
    if (!has_leaf(unit)) continue;
    if (at >= trie_.size()) break;
    const uint32_t begin = value_of(trie_[at]);
    if (begin >= replacements_.size()) return std::string_view();
    return std::string_view(replacements_.data() + begin);  // up to its zero, or the string's own
  }
  return std::nullopt;
}

void PrecompiledMap::append_cluster(std::string_view cluster, std::string& result) const {
  constexpr size_t kMostAsOne = 5;
  if (cluster.size() <= kMostAsOne) {
    if (const auto found = replacement(cluster)) {
      result += *found;
      return;
    }
  }
  for (size_t at = 0; at < cluster.size();) {
    const size_t bytes = std::max<size_t>(decode_utf8(cluster, at).bytes, 1);
    const auto character = cluster.substr(at, bytes);
    result += replacement(character).value_or(character);
    at += bytes;
  }
}

std::string PrecompiledMap::apply(std::string_view text) const {
  std::string result;
  result.reserve(text.size());
  utf8proc_int32_t state = 0;
  utf8proc_int32_t last = -1;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char next = decode_utf8(text, at);
    const auto value = static_cast<utf8proc_int32_t>(next.bytes > 0 ? next.value : 0xFFFD);
    if (at > 0 && utf8proc_grapheme_break_stateful(last, value, &state)) {
      append_cluster(text.substr(begin, at - begin), result);
      begin = at;
    }
    last = value;
    at += std::max<size_t>(next.bytes, 1);
  }
  if (begin < text.size()) append_cluster(text.substr(begin), result);
  return result;
}

std::optional<std::string> decode_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<int8_t, 256> digit_of = {};
  digit_of.fill(-1);
  for (size_t i = 0; i < kDigits.size(); ++i) digit_of[static_cast<uint8_t>(kDigits[i])] = static_cast<int8_t>(i);
  if (text.size() % 4 != 0) return std::nullopt;
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  uint32_t buffer = 0;
  int bits = 0;
  for (const char c : text) {
    const int8_t digit = digit_of[static_cast<uint8_t>(c)];
    if (digit < 0) return std::nullopt;
    buffer = buffer << 6 | static_cast<uint32_t>(digit);
    bits += 6;
    if (bits >= 8) bytes += static_cast<char>(buffer >> (bits -= 8));
  }
  return bytes;
}

}  // namespace stepc
