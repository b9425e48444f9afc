#include "data/source/json_field.h"

#include <cctype>
#include <cmath>
#include <cstdlib>
#include <optional>

#include <nlohmann/json.hpp>

#include "base/check.h"

namespace stepc {

namespace {
constexpr int kMaxFieldDepth = 32;

// What the parser reports, of which only the members of the outermost object matter.
class FieldReader : public nlohmann::json_sax<Json> {
 public:
  FieldReader(std::string_view field, std::string_view what) : field_(field), what_(what) {}

  bool null() override { return other("null"); }
  bool boolean(bool value) override { return other(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return other(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override { return other(std::to_string(value)); }
  bool number_float(number_float_t /*value*/, const string_t& text) override { return other(text); }
  bool binary(binary_t& /*value*/) override { return other("binary data"); }
  bool start_object(std::size_t /*elements*/) override { return open("an object", true); }
  bool start_array(std::size_t /*elements*/) override { return open("a list", false); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool string(string_t& value) override {
    if (depth_ == 0 || !is_field_) return other(in_quotes(value));
    text_ = std::move(value);
    is_field_ = false;
    return true;
  }

  bool key(string_t& name) override {
    if (depth_ != 1) return true;
    is_field_ = name == field_;
    USER_CHECK(!is_field_ || !text_, "{}: duplicate key {}", what_, in_quotes(field_));
    return true;
  }

  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ...; last read: '...'"
    std::string_view said = error.what();
    said.remove_prefix(std::min(said.find("] ") + 2, said.size()));
    user_error("{}: not valid JSON: {}", what_, said.substr(0, said.find("; last read: ")));
  }

  std::string take() {
    USER_CHECK(text_.has_value(), "{}: {} is missing", what_, in_quotes(field_));
    return std::move(*text_);
  }

 private:
  // A value that is no text.
  bool other(std::string_view shown) {
    USER_CHECK(depth_ > 0, "{}: expected an object, found {}", what_, shown);
    USER_CHECK(!is_field_, "{}: {} must be text, found {}", what_, in_quotes(field_), shown);
    return true;
  }
  bool open(std::string_view shown, bool is_object) {
    if (depth_ > 0 || !is_object) other(shown);
    USER_CHECK(++depth_ <= kMaxFieldDepth, "{}: JSON nested more than {} deep", what_, kMaxFieldDepth);
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }

  std::string_view field_, what_;
  int depth_ = 0;
  bool is_field_ = false;  // the next value is the one
  std::optional<std::string> text_;
};

// Where a number of JSON's grammar ends that begins at `at`; `at` where none does.
size_t end_of_number(std::string_view json, size_t at) {
  size_t end = at;
  const auto digits = [&] {
    const size_t first = end;
    while (end < json.size() && std::isdigit(static_cast<unsigned char>(json[end])) != 0) ++end;
    return end > first;
  };
  const auto one_of = [&](std::string_view choices) {
    const bool is_there = end < json.size() && choices.find(json[end]) != std::string_view::npos;
    end += is_there ? 1 : 0;
    return is_there;
  };
  one_of("-");
  if (!one_of("0") && !digits()) return at;
  if (one_of(".") && !digits()) return at;
  if (one_of("eE")) {
    one_of("+-");
    if (!digits()) return at;
  }
  return end;
}

// The same text with 0, and spaces for the other digits, in place of each number that no double holds.
std::string with_finite_numbers(std::string_view json) {
  std::string finite(json);
  for (size_t at = 0; at < json.size(); ++at) {
    if (json[at] == '"') {
      for (++at; at < json.size() && json[at] != '"'; ++at) at += json[at] == '\\' ? 1 : 0;
      continue;
    }
    const size_t end = end_of_number(json, at);
    if (end == at) continue;
    if (!std::isfinite(std::strtod(std::string(json.substr(at, end - at)).c_str(), nullptr))) {
      finite.replace(at, end - at, end - at, ' ');
      finite[at] = '0';
    }
    at = end - 1;
  }
  return finite;
}

// The parser takes such a number for an error. They are rare: the text is looked through only when something was wrong.
template <class Parse>
auto with_any_numbers(std::string_view json, const Parse& parse) {
  try {
    return parse(json);
  } catch (const UserError&) {
    const std::string finite = with_finite_numbers(json);
    if (finite == json) throw;
    return parse(finite);
  }
}
}  // namespace

std::string json_text_field(std::string_view json, std::string_view field, std::string_view what) {
  return with_any_numbers(json, [&](std::string_view text) {
    FieldReader reader(field, what);
    Json::sax_parse(text.begin(), text.end(), &reader);
    return reader.take();
  });
}

Json parse_json_line(std::string_view json, std::string_view what) {
  return with_any_numbers(json, [&](std::string_view text) { return parse_json(text, what); });
}

}  // namespace stepc
