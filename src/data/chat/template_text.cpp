#include "data/chat/template_text.h"

#include <algorithm>

#include "data/tokenize/char_class.h"
#include "data/utf8.h"

namespace stepc {

namespace {
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
size_t char_bytes(std::string_view text, size_t at) { return std::max<size_t>(decode_utf8(text, at).bytes, 1); }

bool is_stripped(std::string_view text, size_t at, size_t bytes, std::string_view chars) {
  const auto one = text.substr(at, bytes);
  if (chars.empty()) return classed_char_at(text, at).kind == CharClass::kSpace;
  return chars.find(one) != std::string_view::npos;
}
}  // namespace

std::string_view stripped(std::string_view text, std::string_view chars, bool left, bool right) {
  while (left && !text.empty()) {
    const size_t bytes = char_bytes(text, 0);
    if (!is_stripped(text, 0, bytes, chars)) break;
    text.remove_prefix(bytes);
  }
  while (right && !text.empty()) {
    size_t at = text.size() - 1;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    if (!is_stripped(text, at, text.size() - at, chars)) break;
    text = text.substr(0, at);
  }
  return text;
}

std::string upper_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), upper);
  return text;
}

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), lower);
  return text;
}

std::string capitalized(std::string text, bool each_word) {
  bool first = true;
  for (char& c : text) {
    c = first ? upper(c) : lower(c);
    first = each_word && !is_letter(c);
  }
  return text;
}

size_t char_count(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); at += char_bytes(text, at)) ++count;
  return count;
}

std::pair<size_t, size_t> slice_bounds(size_t count, std::optional<int64_t> from, std::optional<int64_t> to) {
  const auto size = static_cast<int64_t>(count);
  const auto bound = [&](std::optional<int64_t> at, int64_t otherwise) {
    if (!at) return otherwise;
    return std::clamp<int64_t>(*at < 0 ? *at + size : *at, 0, size);
  };
  const int64_t begin = bound(from, 0);
  return {static_cast<size_t>(begin), static_cast<size_t>(std::max(begin, bound(to, size)))};
}

std::string char_slice(std::string_view text, std::optional<int64_t> from, std::optional<int64_t> to) {
  const auto [begin, end] = slice_bounds(char_count(text), from, to);
  size_t first = 0;
  for (size_t i = 0; i < begin; ++i) first += char_bytes(text, first);
  size_t last = first;
  for (size_t i = begin; i < end; ++i) last += char_bytes(text, last);
  return std::string(text.substr(first, last - first));
}

std::vector<std::string> split_text(std::string_view text, std::optional<std::string_view> separator, int64_t most) {
  std::vector<std::string> parts;
  if (!separator) {
    while (true) {
      text = stripped(text, {}, true, false);
      if (text.empty()) return parts;
      size_t end = 0;
      while (end < text.size() && classed_char_at(text, end).kind != CharClass::kSpace) end += char_bytes(text, end);
      parts.emplace_back(text.substr(0, end));
      text.remove_prefix(end);
    }
  }
  while (most != 0) {
    const size_t found = text.find(*separator);
    if (found == std::string_view::npos) break;
    parts.emplace_back(text.substr(0, found));
    text.remove_prefix(found + separator->size());
    --most;
  }
  parts.emplace_back(text);
  return parts;
}

}  // namespace stepc
