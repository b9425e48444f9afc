#include "data/chat/template_tokens.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/json.h"
#include "data/utf8.h"

namespace stepc {

namespace {
constexpr std::string_view kSpace = " \t\n\r\f\v";

bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Where the tag whose content begins at `at` ends; its closing braces inside of quotes do not count.
size_t tag_end(std::string_view text, size_t at, std::string_view closing) {
  char quote = 0;
  for (; at < text.size(); ++at) {
    if (quote != 0) {
      if (text[at] == '\\') {
        ++at;
      } else if (text[at] == quote) {
        quote = 0;
      }
    } else if (text.substr(at).starts_with(closing)) {
      return at;
    } else if (text[at] == '\'' || text[at] == '"') {
      quote = text[at];
    }
  }
  return std::string_view::npos;
}

void strip_end(std::string& text) { text.erase(text.find_last_not_of(kSpace) + 1); }

// lstrip_blocks: the blanks between the beginning of a line and a tag.
void strip_line(std::string& text, bool at_beginning) {
  const size_t last = text.find_last_not_of(" \t");
  if (last == std::string::npos ? at_beginning : text[last] == '\n') text.erase(last + 1);
}
}  // namespace

std::vector<TemplateTag> cut_tags(std::string_view text, std::string_view what) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  std::vector<TemplateTag> tags;
  int line = 1;
  std::string plain;
  bool strip_begin = false;   // the text that follows loses its leading white space
  bool drop_newline = false;  // or its first newline
  bool at_beginning = true;   // the text that follows begins the template, or a line
  for (size_t at = 0;;) {
    size_t open = at;
    while (true) {
      open = text.find('{', open);
      if (open == std::string_view::npos || open + 1 >= text.size()) break;
      if (text[open + 1] == '{' || text[open + 1] == '%' || text[open + 1] == '#') break;
      ++open;
    }
    const bool last = open == std::string_view::npos || open + 1 >= text.size();
    plain = text.substr(at, last ? std::string_view::npos : open - at);
    const auto newlines = static_cast<int>(std::count(plain.begin(), plain.end(), '\n'));
    if (strip_begin) {
      plain.erase(0, plain.find_first_not_of(kSpace));
    } else if (drop_newline && plain.starts_with('\n')) {
      plain.erase(0, 1);
      at_beginning = true;
    }
    line += newlines;
    if (last) {
      if (!plain.empty()) tags.push_back({TemplateTag::Kind::kText, plain, line});
      return tags;
    }
    const char sort = text[open + 1];
    const std::string closing = sort == '{' ? "}}" : sort == '%' ? "%}" : "#}";
    size_t begin = open + 2;
    const size_t end = sort == '#' ? text.find(closing, begin) : tag_end(text, begin, closing);
    USER_CHECK(end != std::string_view::npos, "{}: line {}: the tag {} is not closed", what, line,
               in_quotes(text.substr(open, 20)));
    const bool minus = text[begin] == '-' && begin < end;
    const bool plus = text[begin] == '+' && begin < end;
    if (minus) strip_end(plain);
    if (!minus && !plus && sort != '{') strip_line(plain, at_beginning);
    if (minus || plus) ++begin;
    if (!plain.empty()) tags.push_back({TemplateTag::Kind::kText, plain, line});
    size_t content_end = end;
    strip_begin = content_end > begin && text[content_end - 1] == '-';
    const bool keep = content_end > begin && text[content_end - 1] == '+';
    if (strip_begin || keep) --content_end;
    drop_newline = sort != '{' && !keep;
    at_beginning = false;
    const auto content = text.substr(begin, content_end - begin);
    if (sort != '#')
      tags.push_back(
          {sort == '{' ? TemplateTag::Kind::kPrint : TemplateTag::Kind::kStatement, std::string(content), line});
    line += static_cast<int>(std::count(content.begin(), content.end(), '\n'));
    at = end + 2;
  }
}

namespace {
// The text between quotes; `at` is moved behind the closing one.
std::string read_text(std::string_view text, size_t& at, int line, std::string_view what) {
  const char quote = text[at++];
  std::string result;
  while (at < text.size() && text[at] != quote) {
    char c = text[at++];
    if (c == '\\' && at < text.size()) {
      c = text[at++];
      constexpr std::string_view kFrom = "ntr0";
      constexpr std::string_view kTo = {"\n\t\r\0", 4};
      const size_t known = kFrom.find(c);
      if (c == 'u') {
        const auto digits = text.substr(at, 4);
        USER_CHECK(digits.size() == 4 && digits.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos,
                   "{}: line {}: \\u wants four digits", what, line);
        append_utf8(result, static_cast<char32_t>(std::stoul(std::string(digits), nullptr, 16)));
        at += 4;
        continue;
      }
      if (known != std::string_view::npos) {
        c = kTo[known];
      } else if (c != '\\' && c != '\'' && c != '"') {
        result += '\\';  // as Python leaves what it does not know
      }
    }
    result += c;
  }
  USER_CHECK(at < text.size(), "{}: line {}: a text is not closed", what, line);
  ++at;
  return result;
}
}  // namespace

std::vector<TemplateToken> cut_tokens(std::string_view text, int line, std::string_view what) {
  using Kind = TemplateToken::Kind;
  constexpr std::array<std::string_view, 24> kSigns = {"==", "!=", "<=", ">=", "//", "**", "<", ">",
                                                       "+",  "-",  "*",  "/",  "%",  "~",  "(", ")",
                                                       "[",  "]",  "{",  "}",  ".",  ",",  ":", "|"};
  std::vector<TemplateToken> tokens;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (kSpace.find(text[at]) != std::string_view::npos) {
      ++at;
    } else if (text[at] == '\'' || text[at] == '"') {
      tokens.push_back({Kind::kText, read_text(text, at, line, what)});
    } else if (begins_name(text[at])) {
      while (at < text.size() && (begins_name(text[at]) || is_digit(text[at]))) ++at;
      tokens.push_back({Kind::kName, std::string(text.substr(begin, at - begin))});
    } else if (is_digit(text[at])) {
      while (at < text.size() &&
             (is_digit(text[at]) || (text[at] == '.' && at + 1 < text.size() && is_digit(text[at + 1]))))
        ++at;
      tokens.push_back({Kind::kNumber, std::string(text.substr(begin, at - begin))});
    } else {
      const auto sign =
          std::find_if(kSigns.begin(), kSigns.end(), [&](auto known) { return text.substr(at).starts_with(known); });
      if (sign == kSigns.end() && text[at] == '=') {
        tokens.push_back({Kind::kSign, "="});
        ++at;
        continue;
      }
      USER_CHECK(sign != kSigns.end(), "{}: line {}: cannot read {}", what, line, in_quotes(text.substr(at, 10)));
      tokens.push_back({Kind::kSign, std::string(*sign)});
      at += sign->size();
    }
  }
  tokens.push_back({Kind::kEnd, ""});
  return tokens;
}

}  // namespace stepc
