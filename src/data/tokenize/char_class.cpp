#include "data/tokenize/char_class.h"

#include <algorithm>
#include <array>

#include <utf8proc.h>

#include "data/utf8.h"

namespace stepc {

namespace {
constexpr CharClass ascii_class(int value) {
  if ((value >= 'a' && value <= 'z') || (value >= 'A' && value <= 'Z')) return CharClass::kLetter;
  if (value >= '0' && value <= '9') return CharClass::kNumber;
  if (value == ' ' || (value >= 0x9 && value <= 0xD)) return CharClass::kSpace;
  return CharClass::kOther;
}

constexpr std::array<CharClass, 0x80> make_ascii() {
  std::array<CharClass, 0x80> classes = {};
  for (int value = 0; value < 0x80; ++value) classes[value] = ascii_class(value);
  return classes;
}

constexpr std::array<CharClass, 0x80> kAscii = make_ascii();

// Letters and numbers of Unicode 15.1 and 16, which the `tokenizers` package knows and Debian's utf8proc does not.
struct Range {
  char32_t first, last;
};
constexpr std::array<Range, 22> kNewLetters = {
    {{0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3}, {0x10D4A, 0x10D65},
     {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x11380, 0x11389}, {0x1138B, 0x1138B}, {0x1138E, 0x1138E},
     {0x11390, 0x113B5}, {0x113B7, 0x113B7}, {0x113D1, 0x113D1}, {0x113D3, 0x113D3}, {0x11BC0, 0x11BE0},
     {0x13460, 0x143FA}, {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF}, {0x1E5D0, 0x1E5ED},
     {0x1E5F0, 0x1E5F0}, {0x2EBF0, 0x2EE5D}}};
constexpr std::array<Range, 7> kNewNumbers = {{{0x10D40, 0x10D49},
                                               {0x116D0, 0x116E3},
                                               {0x11BF0, 0x11BF9},
                                               {0x16130, 0x16139},
                                               {0x16D70, 0x16D79},
                                               {0x1CCF0, 0x1CCF9},
                                               {0x1E5F1, 0x1E5FA}}};

template <size_t kCount>
bool is_in(const std::array<Range, kCount>& ranges, char32_t value) {
  const auto range = std::partition_point(ranges.begin(), ranges.end(), [value](Range r) { return r.last < value; });
  return range != ranges.end() && value >= range->first;
}
}  // namespace

bool is_white_space(char32_t value) {
  if (value < 0x80) return kAscii[value] == CharClass::kSpace;
  return value == 0x85 || value == 0xA0 || value == 0x1680 || (value >= 0x2000 && value <= 0x200A) || value == 0x2028 ||
         value == 0x2029 || value == 0x202F || value == 0x205F || value == 0x3000;
}

CharClass class_of(char32_t value) {
  if (value < 0x80) return kAscii[value];
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(value))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharClass::kLetter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharClass::kNumber;
    case UTF8PROC_CATEGORY_CN:
      return is_in(kNewLetters, value)   ? CharClass::kLetter
             : is_in(kNewNumbers, value) ? CharClass::kNumber
                                         : CharClass::kOther;
    default:
      return is_white_space(value) ? CharClass::kSpace : CharClass::kOther;
  }
}

bool is_word_char(char32_t value) {
  if (value < 0x80)
    return class_of(value) == CharClass::kLetter || class_of(value) == CharClass::kNumber || value == '_';
  // Other_Alphabetic outside the categories below: the circled and squared Latin letters.
  if ((value >= 0x24B6 && value <= 0x24E9) || (value >= 0x1F130 && value <= 0x1F149) ||
      (value >= 0x1F150 && value <= 0x1F169) || (value >= 0x1F170 && value <= 0x1F189))
    return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(value))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    case UTF8PROC_CATEGORY_CN:
      return class_of(value) != CharClass::kOther;
    default:
      return value == 0x200C || value == 0x200D;
  }
}

ClassedChar classed_char_at(std::string_view text, size_t at) {
  const auto lead = static_cast<uint8_t>(text[at]);
  if (lead < 0x80) return {kAscii[lead], 1};
  const Utf8Char next = decode_utf8(text, at);
  if (next.bytes == 0) return {CharClass::kInvalid, 1};
  return {class_of(next.value), static_cast<uint8_t>(next.bytes)};
}

}  // namespace stepc
