#include "data/tokenize/word_split.h"

#include "base/check.h"
#include "data/tokenize/char_class.h"
#include "data/utf8.h"

namespace stepc {

namespace {
constexpr std::string_view kGpt2Regex = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwenRegex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// A class within a class adds to it.
constexpr std::string_view kBloomRegex = R"( ?[^(\s|[.,!?…。，、।۔،])]+)";
constexpr std::u32string_view kBloomMarks = U"(|.,!?…。，、।۔،)";

// One alternative of a pattern after another, each giving the end of its match or `at` itself for none.
class Cursor {
 public:
  Cursor(std::string_view text, size_t begin) : text_(text), begin_(begin), first_(classed_char_at(text, begin)) {}

  [[nodiscard]] size_t gpt2() const {
    if (first_.kind == CharClass::kInvalid) return run(begin_, CharClass::kInvalid);
    if (const size_t end = contraction(false); end > begin_) return end;
    const size_t after_space = begin_ + (text_[begin_] == ' ' ? 1 : 0);
    if (after_space < text_.size()) {
      const CharClass kind = classed_char_at(text_, after_space).kind;
      if (kind != CharClass::kSpace && kind != CharClass::kInvalid) return run(after_space, kind);
    }
    return spaces(run(begin_, CharClass::kSpace));
  }

  [[nodiscard]] size_t llama3(size_t digits) const {
    if (first_.kind == CharClass::kInvalid) return run(begin_, CharClass::kInvalid);
    if (const size_t end = contraction(true); end > begin_) return end;
    if (first_.kind == CharClass::kLetter) return run(begin_, CharClass::kLetter);
    if (first_.kind == CharClass::kNumber) return run(begin_, CharClass::kNumber, digits);
    const size_t second = begin_ + first_.bytes;
    const bool more = second < text_.size();
    const CharClass next = more ? classed_char_at(text_, second).kind : CharClass::kInvalid;
    if (next == CharClass::kLetter && !is_newline(begin_)) return run(second, CharClass::kLetter);
    if (first_.kind == CharClass::kOther) return newlines(run(begin_, CharClass::kOther));
    if (text_[begin_] == ' ' && next == CharClass::kOther) return newlines(run(second, CharClass::kOther));
    const size_t end = run(begin_, CharClass::kSpace);
    for (size_t at = end; at > begin_; --at)
      if (is_newline(at - 1)) return at;
    return spaces(end);
  }

  // The pattern is not all of the text: what it leaves out between two of its words is a word too.
  [[nodiscard]] size_t bloom() const {
    if (first_.kind == CharClass::kInvalid) return run(begin_, CharClass::kInvalid);
    if (begins_bloom_word(begin_)) {
      size_t at = begin_ + (text_[begin_] == ' ' ? 1 : 0);
      while (at < text_.size() && in_bloom_word(at)) at += classed_char_at(text_, at).bytes;
      return at;
    }
    size_t at = begin_;
    while (at < text_.size() && !begins_bloom_word(at)) {
      const ClassedChar next = classed_char_at(text_, at);
      if (next.kind == CharClass::kInvalid) break;
      at += next.bytes;
    }
    return at;
  }

 private:
  [[nodiscard]] bool in_bloom_word(size_t at) const {
    const CharClass kind = classed_char_at(text_, at).kind;
    if (kind == CharClass::kSpace || kind == CharClass::kInvalid) return false;
    return kind != CharClass::kOther || kBloomMarks.find(decode_utf8(text_, at).value) == std::u32string_view::npos;
  }
  [[nodiscard]] bool begins_bloom_word(size_t at) const {
    if (text_[at] == ' ') ++at;
    return at < text_.size() && in_bloom_word(at);
  }

  [[nodiscard]] bool is_newline(size_t at) const { return text_[at] == '\n' || text_[at] == '\r'; }

  // The end of at most `most` characters of one class.
  [[nodiscard]] size_t run(size_t at, CharClass kind, size_t most = SIZE_MAX) const {
    for (; most > 0 && at < text_.size(); --most) {
      const ClassedChar next = classed_char_at(text_, at);
      if (next.kind != kind) break;
      at += next.bytes;
    }
    return at;
  }

  [[nodiscard]] size_t newlines(size_t at) const {
    while (at < text_.size() && is_newline(at)) ++at;
    return at;
  }

  // \s+(?!\S)|\s+ over the spaces that end at `end`: the last one is left to the word that follows, if there is one.
  [[nodiscard]] size_t spaces(size_t end) const {
    if (end == text_.size() || classed_char_at(text_, end).kind == CharClass::kInvalid) return end;
    size_t last = end - 1;
    while ((static_cast<unsigned char>(text_[last]) & 0xC0) == 0x80) --last;
    return last > begin_ ? last : end;
  }

  // 's 't 're 've 'm 'll 'd. Without regard to case, the long s of old print is an s.
  [[nodiscard]] size_t contraction(bool any_case) const {
    if (text_[begin_] != '\'') return begin_;
    const auto letter = [&](size_t at) -> char {
      if (at >= text_.size()) return 0;
      const char c = text_[at];
      return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
    };
    switch (letter(begin_ + 1)) {
      case 's':
      case 't':
      case 'm':
      case 'd':
        return begin_ + 2;
      case 'r':
      case 'v':
        return letter(begin_ + 2) == 'e' ? begin_ + 3 : begin_;
      case 'l':
        return letter(begin_ + 2) == 'l' ? begin_ + 3 : begin_;
      default:
        return any_case && text_.substr(begin_ + 1).starts_with("\u017F") ? begin_ + 3 : begin_;
    }
  }

  std::string_view text_;
  size_t begin_;
  ClassedChar first_;
};
}  // namespace

std::string_view regex_of(WordPattern pattern) {
  switch (pattern) {
    case WordPattern::kGpt2:
      return kGpt2Regex;
    case WordPattern::kLlama3:
      return kLlama3Regex;
    case WordPattern::kQwen:
      return kQwenRegex;
    case WordPattern::kBloom:
      return kBloomRegex;
    case WordPattern::kNone:
      break;
  }
  return {};
}

std::optional<WordPattern> word_pattern_of(std::string_view regex) {
  for (const auto pattern : {WordPattern::kGpt2, WordPattern::kLlama3, WordPattern::kQwen, WordPattern::kBloom})
    if (regex == regex_of(pattern)) return pattern;
  return std::nullopt;
}

size_t word_end(WordPattern pattern, std::string_view text, size_t begin) {
  INTERNAL_CHECK_LT(begin, text.size());
  switch (pattern) {
    case WordPattern::kGpt2:
      return Cursor(text, begin).gpt2();
    case WordPattern::kLlama3:
      return Cursor(text, begin).llama3(3);
    case WordPattern::kQwen:
      return Cursor(text, begin).llama3(1);
    case WordPattern::kBloom:
      return Cursor(text, begin).bloom();
    case WordPattern::kNone:
      break;
  }
  return text.size();
}

}  // namespace stepc
