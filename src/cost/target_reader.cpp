#include "cost/target_reader.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <sstream>
#include <utility>

#include <fmt/ranges.h>

#include "base/json.h"
#include "base/text.h"

namespace stepc::target_text {

namespace {
constexpr double kLowestRate = 1, kHighestRate = 1e18;     // a second; no machine is outside
constexpr double kShortestTime = 1e-12, kLongestTime = 1;  // seconds of what is done a thousand times a step
constexpr int64_t kLargestSize = int64_t{1} << 50;
constexpr size_t kLongestText = 80;
}  // namespace

// Letters of other alphabets where none may stand lead toml++ (3.3) to code that it takes for unreachable.
toml::table parse(std::string_view text) {
  const auto other = std::ranges::find_if(text, [](char c) { return static_cast<unsigned char>(c) > 0x7F; });
  USER_CHECK(other == text.end(), "target, line {}: a character that is not ASCII",
             1 + std::count(text.begin(), other, '\n'));
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    user_error("target, line {}: not TOML: {}", error.source().begin.line, in_quotes(error.description()));
  }
}

std::string place(const std::string& key, const toml::node& node) {
  std::ostringstream written;
  written << key << " = ";
  node.visit([&](const auto& value) { written << value; });
  std::string text = written.str();
  std::ranges::replace_if(
      text, [](unsigned char c) { return std::iscntrl(c) != 0; }, ' ');
  if (text.size() > kLongestText) text.replace(kLongestText, std::string::npos, "...");
  return str("target, line {}: {}", node.source().begin.line, text);
}

double number_of(const std::string& key, const toml::node& node, double lowest, double highest) {
  const auto number = node.is_number() ? node.value<double>() : std::nullopt;
  USER_CHECK(number && *number >= lowest && *number <= highest, "{}: must be a number from {} to {}", place(key, node),
             lowest, highest);
  return *number;
}
double rate_of(const std::string& key, const toml::node& node) {
  return number_of(key, node, kLowestRate, kHighestRate);
}
double seconds_of(const std::string& key, const toml::node& node) {
  return number_of(key, node, kShortestTime, kLongestTime);
}

void unknown_key(const std::string& key, const toml::node& node, const std::vector<std::string>& known) {
  const auto near = nearest(key, known);
  user_error("{}: unknown key; {}", place(key, node),
             near ? str("did you mean {}?", *near) : str("the keys are {}", fmt::join(known, ", ")));
}

TableReader::TableReader(std::string name, const toml::node& node)
    : name_(std::move(name)), node_(node), table_(node.as_table()) {
  if (table_ == nullptr) user_error("{}: must be a table", place(name_, node));
}

std::string TableReader::op(const std::string& key) {
  const toml::node& node = get(key);
  const auto name = node.value<std::string>();
  const auto is_of_name = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == ':' || c == '.'; };
  USER_CHECK(name && !name->empty() && std::ranges::all_of(*name, is_of_name), "{}: must be the name of an op",
             place(key, node));
  return *name;
}

std::string TableReader::text(const std::string& key) {
  const toml::node& node = get(key);
  const auto text = node.value<std::string>();
  const auto is_shown = [](unsigned char c) { return std::isprint(c) != 0 && c != '"' && c != '\\'; };
  USER_CHECK(text && !text->empty() && text->size() <= kLongestText && std::ranges::all_of(*text, is_shown),
             "{}: must be a text of 1 to {} printable characters", place(key, node), kLongestText);
  return *text;
}

int64_t TableReader::size(const std::string& key) {
  const toml::node& node = get(key);
  const auto size = node.is_integer() ? node.value<int64_t>() : std::nullopt;
  USER_CHECK(size && *size >= 1 && *size <= kLargestSize, "{}: must be a whole number from 1 to {}", place(key, node),
             kLargestSize);
  return *size;
}

std::string TableReader::one_of(const std::string& key, const std::vector<std::string>& names) {
  const toml::node& node = get(key);
  const auto name = node.value<std::string>();
  USER_CHECK(name && std::ranges::find(names, *name) != names.end(), "{}: must be one of {}", place(key, node),
             fmt::join(names, ", "));
  return *name;
}

const toml::node& TableReader::get(const std::string& key) {
  read_.push_back(key);
  const toml::node* node = table_->get(key);
  USER_CHECK(node != nullptr, "target, line {}: {}: {} is missing", node_.source().begin.line, name_, key);
  return *node;
}

void TableReader::refuse(const std::string& why) const {
  user_error("target, line {}: {}", node_.source().begin.line, why);
}

void TableReader::end() const {
  for (const auto& [name, node] : *table_)
    if (std::ranges::find(read_, name.str()) == read_.end()) unknown_key(std::string(name.str()), node, read_);
}

}  // namespace stepc::target_text
