// One key of run.toml at a time: what it allows, and its value to and from text.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <type_traits>

#include <fmt/ranges.h>

#include "base/text.h"
#include "train/config/parallel.h"
#include "train/config/run_config_keys.h"

namespace stepc::train {
namespace {

template <class... Options>
struct Overloaded : Options... {
  using Options::operator()...;
};
template <class... Options>
Overloaded(Options...) -> Overloaded<Options...>;

bool within(double value, const Allowed& bounds) {
  if (!std::isfinite(value)) return false;
  const bool low = bounds.above_least ? value > bounds.least : value >= bounds.least;
  const bool high = bounds.below_most ? value < bounds.most : value <= bounds.most;
  return low && high;
}

std::string bounds_text(const Allowed& bounds) {
  std::string text;
  if (std::isfinite(bounds.least)) text += str("{} {:.15g}", bounds.above_least ? "above" : "at least", bounds.least);
  if (!std::isfinite(bounds.most)) return text;
  return text + str("{}{} {:.15g}", text.empty() ? "" : ", ", bounds.below_most ? "below" : "at most", bounds.most);
}

std::string in_toml_quotes(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c >= 0 && c < ' ' ? str("\\u{:04x}", static_cast<int>(c)) : std::string(1, c);
  }
  return quoted + '"';
}

// The shortest text that reads back as this number, always recognisable as a float.
std::string float_text(double value) {
  std::string text = str("{}", value);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

template <class Items, class Print>
std::string list_text(const Items& items, Print&& print) {
  std::vector<std::string> texts;
  for (const auto& item : items) texts.push_back(print(item));
  return str("[{}]", fmt::join(texts, ", "));
}

double number_of(const Written& written) {
  if (const auto* integer = std::get_if<int64_t>(&written)) return static_cast<double>(*integer);
  if (const auto* real = std::get_if<double>(&written)) return *real;
  return std::numeric_limits<double>::quiet_NaN();
}

bool is_choice(std::string_view choice, std::string_view text) {
  if (!choice.ends_with(":N")) return text == choice;
  choice.remove_suffix(1);
  if (!text.starts_with(choice)) return false;
  text.remove_prefix(choice.size());
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number > 0;
}

// Stores a value of the field's type; false where it is not one, or not allowed.
struct Store {
  const Written& written;
  const Allowed& allowed;

  bool operator()(int64_t* field) const {
    if (!std::holds_alternative<int64_t>(written) || !within(number_of(written), allowed)) return false;
    *field = std::get<int64_t>(written);
    return true;
  }
  bool operator()(double* field) const {
    if (!within(number_of(written), allowed)) return false;
    *field = number_of(written);
    return true;
  }
  bool operator()(bool* field) const {
    if (!std::holds_alternative<bool>(written)) return false;
    *field = std::get<bool>(written);
    return true;
  }
  bool operator()(std::array<double, 2>* field) const {
    const auto list = numbers();
    if (!list || list->size() != field->size() || !all_within(*list)) return false;
    std::ranges::copy(*list, field->begin());
    return true;
  }
  bool operator()(std::vector<double>* field) const {
    if (is_empty_list()) {
      field->clear();
      return allowed.may_be_empty;
    }
    const auto list = numbers();
    if (!list || !all_within(*list)) return false;
    *field = *list;
    return true;
  }
  bool operator()(std::vector<int64_t>* field) const {
    if (is_empty_list()) {
      field->clear();
      return allowed.may_be_empty;
    }
    const auto* list = std::get_if<std::vector<int64_t>>(&written);
    if (list == nullptr || !all_within(*numbers())) return false;
    *field = *list;
    return true;
  }
  bool operator()(std::vector<ShardRule>* field) const {
    if (is_empty_list()) {
      field->clear();
      return allowed.may_be_empty;
    }
    const auto* list = std::get_if<std::vector<ShardRule>>(&written);
    if (list != nullptr) *field = *list;
    return list != nullptr;
  }
  bool operator()(std::string* field) const {
    const auto* text = std::get_if<std::string>(&written);
    if (text == nullptr || (text->empty() && !allowed.may_be_empty)) return false;
    const auto is_text = [&](const std::string& choice) { return is_choice(choice, *text); };
    if (!allowed.choices.empty() && std::ranges::none_of(allowed.choices, is_text)) return false;
    *field = *text;
    return true;
  }
  bool operator()(std::vector<std::string>* field) const {
    const auto* list = std::get_if<std::vector<std::string>>(&written);
    if (list == nullptr || (list->empty() && !allowed.may_be_empty)) return false;
    if (std::ranges::find(*list, "") != list->end()) return false;
    *field = *list;
    return true;
  }

 private:
  [[nodiscard]] std::optional<std::vector<double>> numbers() const {
    if (const auto* list = std::get_if<std::vector<double>>(&written)) return *list;
    if (const auto* list = std::get_if<std::vector<int64_t>>(&written))
      return std::vector<double>(list->begin(), list->end());
    return std::nullopt;
  }
  [[nodiscard]] bool all_within(const std::vector<double>& list) const {
    return std::ranges::all_of(list, [&](double value) { return within(value, allowed); });
  }
  [[nodiscard]] bool is_empty_list() const {
    const auto* list = std::get_if<std::vector<std::string>>(&written);
    return list != nullptr && list->empty();
  }
};

}  // namespace

namespace {
std::string rule_text(const ShardRule& rule) {
  std::vector<std::string> dims;
  for (const auto& [dim, axis] : rule.dims) dims.push_back(str("{} = {}", dim, in_toml_quotes(axis)));
  return str("{{param = {}, dims = {{{}}}}}", in_toml_quotes(rule.pattern), fmt::join(dims, ", "));
}
}  // namespace

std::string section_of(const Key& key) { return key.name.substr(0, key.name.find('.')); }
std::string bare_name(const Key& key) { return key.name.substr(key.name.find('.') + 1); }

std::string allowed_text(const Key& key) {
  RunConfig any;
  const std::string bounds = bounds_text(key.allowed);
  const auto with_bounds = [&](const char* noun) { return bounds.empty() ? noun : str("{}, {}", noun, bounds); };
  const std::string emptiness = key.allowed.may_be_empty ? "may be empty" : "not empty";
  return std::visit(Overloaded{
                        [&](int64_t*) { return with_bounds("an integer"); },
                        [&](double*) { return with_bounds("a number"); },
                        [&](bool*) { return std::string("true or false"); },
                        [&](std::array<double, 2>*) { return with_bounds("two numbers"); },
                        [&](std::vector<double>*) { return with_bounds("a list of numbers") + ", " + emptiness; },
                        [&](std::vector<int64_t>*) { return with_bounds("a list of integers") + ", " + emptiness; },
                        [&](std::vector<ShardRule>*) {
                          return std::string("a list of tables {param = \"*.q_proj.weight\", dims = {0 = \"tp\"}}, ") +
                                 emptiness;
                        },
                        [&](std::vector<std::string>*) { return "a list of texts, " + emptiness; },
                        [&](std::string*) {
                          return key.allowed.choices.empty() ? "a text, " + emptiness
                                                             : str("one of {}", fmt::join(key.allowed.choices, ", "));
                        },
                    },
                    key.field(any));
}

bool assign(const Key& key, const Written& written, RunConfig& config) {
  return std::visit(Store{written, key.allowed}, key.field(config));
}

std::string value_text(const Key& key, const RunConfig& config) {
  RunConfig copy = config;
  return std::visit(Overloaded{
                        [](int64_t* field) { return str("{}", *field); },
                        [](double* field) { return float_text(*field); },
                        [](bool* field) { return std::string(*field ? "true" : "false"); },
                        [](std::string* field) { return in_toml_quotes(*field); },
                        [](std::array<double, 2>* field) { return list_text(*field, float_text); },
                        [](std::vector<double>* field) { return list_text(*field, float_text); },
                        [](std::vector<int64_t>* field) { return str("[{}]", fmt::join(*field, ", ")); },
                        [](std::vector<ShardRule>* field) { return list_text(*field, rule_text); },
                        [](std::vector<std::string>* field) { return list_text(*field, in_toml_quotes); },
                    },
                    key.field(copy));
}

std::vector<std::string> without_effect(const RunConfig& config) {
  const RunConfig defaults;
  std::vector<std::string> lines;
  if (!config.data.buckets.empty() && config.data.seq_len != defaults.data.seq_len)
    lines.push_back(str("data.seq_len = {} has no effect: data.buckets says how long rows are", config.data.seq_len));
  const RunConfig::Parallel& parallel = config.parallel;
  if (parallel.zero != defaults.parallel.zero && parallel.dp_shard == 1 && parallel.cp == 1)
    lines.push_back(str("parallel.zero = {} has no effect: parallel.dp_shard and parallel.cp are 1", parallel.zero));
  if (parallel.order != defaults.parallel.order && parallel.pp == 1)
    lines.push_back(str("parallel.order = \"{}\" has no effect: parallel.pp is 1", parallel.order));
  if (parallel.chunks != defaults.parallel.chunks && parallel.pp == 1)
    lines.push_back(str("parallel.chunks = {} has no effect: parallel.pp is 1", parallel.chunks));
  if (!parallel.stages.empty() && parallel.pp == 1)
    lines.emplace_back("parallel.stages has no effect: parallel.pp is 1");
  if (parallel.reduce != defaults.parallel.reduce && !has_axes(parallel) && parallel.ranks <= 1)
    lines.push_back(str("parallel.reduce = \"{}\" has no effect: there is one rank", parallel.reduce));
  if (!parallel.sequence_parallel && parallel.tp == 1)
    lines.emplace_back("parallel.sequence_parallel = false has no effect: parallel.tp is 1");
  if (parallel.context != defaults.parallel.context && parallel.cp == 1)
    lines.push_back(str("parallel.context = \"{}\" has no effect: parallel.cp is 1", parallel.context));
  for (const Key& key : run_config_keys()) {
    const bool is_read = key.optimizers.empty() || std::ranges::count(key.optimizers, config.optim.name) > 0;
    const std::string value = value_text(key, config);
    if (!is_read && value != value_text(key, defaults))
      lines.push_back(str("{} = {} has no effect: optim.name is \"{}\", and the key is for {}", key.name, value,
                          config.optim.name, fmt::join(key.optimizers, ", ")));
  }
  return lines;
}

}  // namespace stepc::train
