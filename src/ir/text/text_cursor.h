// The lexical layer of the text forms: a cursor over lines of text, and how constants are spelled. A mismatch is a
// UserError that names the kind of text, the line and the place.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <fmt/ranges.h>

#include "base/text.h"

namespace stepc {

std::string quoted(const std::string& text);  // "a \"b\"\n"
// Shortest text that reads back to the same double and is not an integer's.
std::string constant_text(double value);
std::string constant_text(int64_t value);
std::string constant_text(bool value);
// "[1, 2]" behind `open`, which is "[" or what tells a list of other elements, "f[".
template <class T>
std::string list_text(std::string_view open, const std::vector<T>& values) {
  std::vector<std::string> parts;
  for (const auto& value : values) parts.push_back(constant_text(static_cast<T>(value)));
  return str("{}{}]", open, fmt::join(parts, ", "));
}
std::string hex_text(std::string_view bytes);  // two digits a byte; "none" for no bytes

class TextCursor {
 public:
  // `kind` begins every error message: "graph text".
  TextCursor(std::string_view kind, std::string_view text) : kind_(kind), text_(text) {}

  [[noreturn]] void fail(std::string_view what) const;

  bool next_line();  // false at the end
  [[nodiscard]] bool at_end_of_line() const { return line_.empty(); }
  [[nodiscard]] std::string_view rest() const { return line_; }
  void end_of_line();

  // Each takes what it returns and the blanks after it.
  bool accept(std::string_view token);
  void expect(std::string_view token);
  int64_t integer();
  uint64_t unsigned_integer();
  uint32_t id();   // of something that is not counted here
  size_t index();  // 0 and up, no larger than an honest text could name
  double real();
  std::variant<int64_t, double> number();
  bool boolean();
  std::string_view word();  // letters, digits, '_', '.', ':'
  std::string quoted_text();
  std::string hex_bytes();

  template <class F>
  void list(std::string_view close, F&& element) {
    if (accept(close)) return;
    do element();
    while (accept(","));
    expect(close);
  }
  std::vector<int64_t> integers(std::string_view close);

  // The lines that follow and begin with two blanks, without those; the next line is then the one behind them.
  std::string indented_lines();

 private:
  void advance(size_t count);

  std::string_view kind_;
  std::string_view text_;
  std::string_view line_;
  size_t position_ = 0;
  int line_number_ = 0;
};

}  // namespace stepc
