#include "data/tokenize/unicode_form.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <utf8proc.h>

#include "base/check.h"
#include "data/utf8.h"

namespace stepc {

namespace {
utf8proc_option_t options_of(UnicodeForm form) {
  int options = UTF8PROC_STABLE;
  options |= form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd) options |= UTF8PROC_COMPAT;
  return static_cast<utf8proc_option_t>(options);
}

// Characters that have a decomposition or a combining class only since Unicode 10 to 15, and the two that compose only
// since. The `tokenizers` package is older than they are, and so are the texts that vocabularies were trained on: to it
// they are characters without properties.
constexpr std::array<std::pair<char32_t, char32_t>, 47> kInert = {{
    {0x07FD, 0x07FD},   {0x0898, 0x089F},   {0x08CA, 0x08D3},   {0x09FE, 0x09FE},   {0x0C3C, 0x0C3C},
    {0x0D3B, 0x0D3C},   {0x0EBA, 0x0EBA},   {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x10785},
    {0x10787, 0x107B0}, {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E},
    {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943},
    {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E030, 0x1E06D},
    {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
    {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9},
}};

bool is_inert(char32_t value) {
  const auto range =
      std::partition_point(kInert.begin(), kInert.end(), [value](const auto& known) { return known.second < value; });
  return range != kInert.end() && value >= range->first;
}

size_t ascii_end(std::string_view text, size_t at) {
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}
// Normalizes text that does not join with the text before or after it.
class Normalization {
 public:
  explicit Normalization(UnicodeForm form) : options_(options_of(form)) {}

  void append(std::string_view text, std::string& result) {
    const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
    const auto size = static_cast<utf8proc_ssize_t>(text.size());
    if (chars_.size() <= text.size()) chars_.resize(text.size() + 1);
    auto room = static_cast<utf8proc_ssize_t>(chars_.size()) - 1;  // utf8proc wants one more than it says
    utf8proc_ssize_t count = utf8proc_decompose(bytes, size, chars_.data(), room, options_);
    if (count > room) {
      chars_.resize(static_cast<size_t>(count) + 1);
      count = utf8proc_decompose(bytes, size, chars_.data(), count, options_);
    }
    if (count > 0) count = utf8proc_normalize_utf32(chars_.data(), count, options_);
    INTERNAL_CHECK(count >= 0, "{}", utf8proc_errmsg(count));
    for (utf8proc_ssize_t i = 0; i < count; ++i) append_utf8(result, static_cast<char32_t>(chars_[i]));
  }

 private:
  utf8proc_option_t options_;
  std::vector<utf8proc_int32_t> chars_;
};
}  // namespace

// ASCII is normal in every form and never joins what is before it, so the work is done between one ASCII character and
// the next: on that character and the others that follow.
std::string normalized(std::string_view text, UnicodeForm form) {
  Normalization normalization(form);
  std::string result;
  result.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    size_t end = ascii_end(text, at);
    const size_t begin = end > at && end < text.size() ? end - 1 : end;
    result.append(text.substr(at, begin - at));
    Utf8Char next = {};
    while (end < text.size() && static_cast<unsigned char>(text[end]) >= 0x80) {
      next = decode_utf8(text, end);
      if (next.bytes == 0 || is_inert(next.value)) break;
      end += next.bytes;
    }
    if (end > begin) normalization.append(text.substr(begin, end - begin), result);
    at = end;
    if (at < text.size() && static_cast<unsigned char>(text[at]) >= 0x80) {  // inert, or no UTF-8
      result.append(text.substr(at, std::max<size_t>(next.bytes, 1)));
      at += std::max<size_t>(next.bytes, 1);
    }
  }
  return result;
}

}  // namespace stepc
