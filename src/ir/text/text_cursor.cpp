#include "ir/text/text_cursor.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "base/check.h"

namespace stepc {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out + "\"";
}

std::string constant_text(double value) {
  std::string text = str("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}
std::string constant_text(int64_t value) { return str("{}", value); }
std::string constant_text(bool value) { return value ? "true" : "false"; }

std::string hex_text(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  if (bytes.empty()) return "none";
  std::string out;
  out.reserve(2 * bytes.size());
  for (const char byte : bytes) {
    out += kDigits[static_cast<unsigned char>(byte) / 16];
    out += kDigits[static_cast<unsigned char>(byte) % 16];
  }
  return out;
}

void TextCursor::fail(std::string_view what) const {
  user_error("{}, line {}: {}, at '{}'", kind_, line_number_, what, line_.substr(0, 40));
}

void TextCursor::advance(size_t count) {
  line_.remove_prefix(count);
  line_.remove_prefix(std::min(line_.find_first_not_of(' '), line_.size()));
}

bool TextCursor::next_line() {
  if (position_ >= text_.size()) return false;
  const size_t end = std::min(text_.find('\n', position_), text_.size());
  line_ = text_.substr(position_, end - position_);
  position_ = end + 1;
  ++line_number_;
  advance(0);
  return true;
}

void TextCursor::end_of_line() {
  if (!line_.empty()) fail("unexpected text at the end of the line");
}

bool TextCursor::accept(std::string_view token) {
  if (!line_.starts_with(token)) return false;
  advance(token.size());
  return true;
}

void TextCursor::expect(std::string_view token) {
  if (!accept(token)) fail(str("expected '{}'", token));
}

int64_t TextCursor::integer() {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(line_.data(), line_.data() + line_.size(), value);
  if (error != std::errc()) fail("expected an integer");
  advance(static_cast<size_t>(end - line_.data()));
  return value;
}

uint64_t TextCursor::unsigned_integer() {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(line_.data(), line_.data() + line_.size(), value);
  if (error != std::errc()) fail("expected a number of 0 and up");
  advance(static_cast<size_t>(end - line_.data()));
  return value;
}

uint32_t TextCursor::id() {
  const uint64_t value = unsigned_integer();
  if (value >= UINT32_MAX) fail(str("{} is out of range", value));
  return static_cast<uint32_t>(value);
}

size_t TextCursor::index() {
  const int64_t value = integer();
  // No honest text names more things than it has characters.
  if (value < 0 || static_cast<size_t>(value) >= text_.size()) fail(str("index {} is out of range", value));
  return static_cast<size_t>(value);
}

std::variant<int64_t, double> TextCursor::number() {
  for (const auto& [token, special] :
       {std::pair<std::string_view, double>{"inf", HUGE_VAL}, {"-inf", -HUGE_VAL}, {"nan", NAN}, {"-nan", -NAN}})
    if (accept(token)) return special;
  const size_t end = std::min(line_.find_first_not_of("+-0123456789.e"), line_.size());
  const std::string_view digits = line_.substr(0, end);
  if (digits.find_first_of(".e") == std::string_view::npos) return integer();
  double value = 0;
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || stop != digits.data() + digits.size()) fail("expected a number");
  advance(end);
  return value;
}

double TextCursor::real() {
  const auto value = number();
  if (const auto* real = std::get_if<double>(&value)) return *real;
  fail("expected a number with a point");
}

bool TextCursor::boolean() {
  if (accept("true")) return true;
  expect("false");
  return false;
}

std::string_view TextCursor::word() {
  size_t end = 0;
  while (end < line_.size() && (std::isalnum(static_cast<unsigned char>(line_[end])) != 0 || line_[end] == '_' ||
                                line_[end] == ':' || line_[end] == '.'))
    ++end;
  if (end == 0) fail("expected a name");
  const std::string_view found = line_.substr(0, end);
  advance(end);
  return found;
}

std::string TextCursor::quoted_text() {
  if (!line_.starts_with('"')) fail("expected a quoted text");
  std::string out;
  for (size_t i = 1; i < line_.size(); ++i) {
    if (line_[i] == '"') {
      advance(i + 1);
      return out;
    }
    if (line_[i] == '\\' && i + 1 < line_.size()) {
      ++i;
      out += line_[i] == 'n' ? '\n' : line_[i];
    } else {
      out += line_[i];
    }
  }
  fail("a quoted text does not end");
}

std::string TextCursor::hex_bytes() {
  std::string out;
  if (accept("none")) return out;
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  const size_t end = std::min(line_.find_first_not_of("0123456789abcdef"), line_.size());
  if (end == 0) fail("expected hexadecimal digits");
  if (end % 2 != 0) fail("a byte has two hexadecimal digits");
  out.reserve(end / 2);
  for (size_t i = 0; i < end; i += 2) out += static_cast<char>(digit(line_[i]) * 16 + digit(line_[i + 1]));
  advance(end);
  return out;
}

std::string TextCursor::indented_lines() {
  std::string out;
  while (text_.substr(std::min(position_, text_.size())).starts_with("  ")) {
    const size_t end = std::min(text_.find('\n', position_), text_.size());
    out += text_.substr(position_ + 2, end - position_ - 2);
    out += '\n';
    position_ = end + 1;
    ++line_number_;
  }
  return out;
}

std::vector<int64_t> TextCursor::integers(std::string_view close) {
  std::vector<int64_t> out;
  list(close, [&] { out.push_back(integer()); });
  return out;
}

}  // namespace stepc
