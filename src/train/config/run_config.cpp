#include "train/config/run_config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <tuple>
#include <utility>

#include <fmt/ranges.h>
#include <toml++/toml.h>

#include "base/check.h"
#include "base/files.h"
#include "base/text.h"
#include "train/config/parallel.h"
#include "train/config/run_config_keys.h"

namespace stepc::train {
namespace {

// One line of TOML text, cut where it would fill the terminal.
std::string text_of(const toml::node& node) {
  std::ostringstream stream;
  node.visit([&](const auto& value) { stream << value; });
  std::string text = stream.str();
  std::ranges::replace(text, '\n', ' ');
  constexpr size_t kLongest = 60;
  return text.size() > kLongest ? text.substr(0, kLongest) + "..." : text;
}

// {param = "*.q_proj.weight", dims = {0 = "tp"}}; nullopt for anything else.
std::optional<ShardRule> written_rule(const toml::node& node) {
  const toml::table* table = node.as_table();
  if (table == nullptr || table->size() != 2) return std::nullopt;
  const auto param = (*table)["param"].value<std::string>();
  const toml::table* dims = (*table)["dims"].as_table();
  if (!param || dims == nullptr || dims->empty()) return std::nullopt;
  ShardRule rule{*param, {}};
  for (const auto& [key, axis] : *dims) {
    const std::string_view digits = key.str();
    const bool is_dim = !digits.empty() && digits.size() < 3 && digits.find_first_not_of("0123456789") == digits.npos;
    if (!is_dim || !axis.is_string()) return std::nullopt;
    rule.dims.emplace(std::stoul(std::string(digits)), *axis.value<std::string>());
  }
  return rule;
}

Written written_list(const toml::array& array) {
  std::vector<int64_t> integers;
  std::vector<double> numbers;
  std::vector<std::string> texts;
  std::vector<ShardRule> rules;
  for (const toml::node& item : array) {
    if (item.is_integer()) integers.push_back(*item.value<int64_t>());
    if (item.is_number()) numbers.push_back(*item.value<double>());
    if (item.is_string()) texts.push_back(*item.value<std::string>());
    if (auto rule = written_rule(item)) rules.push_back(std::move(*rule));
  }
  if (texts.size() == array.size()) return texts;
  if (integers.size() == array.size()) return integers;
  if (numbers.size() == array.size()) return numbers;
  if (rules.size() == array.size()) return rules;
  return std::monostate();
}

Written written(const toml::node& node) {
  if (node.is_boolean()) return *node.value<bool>();
  if (node.is_integer()) return *node.value<int64_t>();
  if (node.is_floating_point()) return *node.value<double>();
  if (node.is_string()) return *node.value<std::string>();
  if (const toml::array* array = node.as_array()) return written_list(*array);
  return std::monostate();
}

const Key* find_key(std::string_view name) {
  const auto& keys = run_config_keys();
  const auto found = std::ranges::find(keys, name, &Key::name);
  return found == keys.end() ? nullptr : &*found;
}

std::vector<std::string> sections() {
  std::vector<std::string> names;
  for (const Key& key : run_config_keys()) {
    if (names.empty() || names.back() != section_of(key)) names.push_back(section_of(key));
  }
  return names;
}

// The key that other programs call by this name.
const Key* key_named_elsewhere(std::string_view bare) {
  const auto& keys = run_config_keys();
  const auto found =
      std::ranges::find_if(keys, [&](const Key& key) { return std::ranges::count(key.elsewhere, bare) > 0; });
  return found == keys.end() ? nullptr : &*found;
}

// Why stepc lacks a key that other programs have; empty: no such key is known.
std::string_view absent(std::string_view bare) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kAbsent = {
      {{"ep", "expert parallelism"},
       {"ep_size", "expert parallelism"},
       {"expert_parallel_degree", "expert parallelism"}}};
  const auto found = std::ranges::find(kAbsent, bare, &std::pair<std::string_view, std::string_view>::first);
  return found == kAbsent.end() ? std::string_view() : found->second;
}

// For an unknown "section.key": the nearest known key; else the keys of its section.
std::string suggestion(const std::string& name) {
  if (const auto what = absent(name.substr(name.rfind('.') + 1)); !what.empty()) return str("there is no {} yet", what);
  if (const Key* ours = key_named_elsewhere(name.substr(name.rfind('.') + 1)))
    return str("here it is {}: {}", ours->name, ours->help);
  std::vector<std::string> all;
  std::vector<std::string> same_section;
  for (const Key& key : run_config_keys()) {
    all.push_back(key.name);
    if (name.starts_with(section_of(key) + ".")) same_section.push_back(bare_name(key));
  }
  if (const auto near = nearest(name, all)) return str("did you mean {}?", *near);
  if (!same_section.empty()) {
    return str("[{}] has {}", name.substr(0, name.find('.')), fmt::join(same_section, ", "));
  }
  return str("the sections are {}", fmt::join(sections(), ", "));
}

// A suggestion for a key outside every section, or in an unknown section.
std::string suggestion_at_top(const std::string& name) {
  if (const Key* ours = key_named_elsewhere(name)) return str("here it is {}: {}", ours->name, ours->help);
  if (const auto near = nearest(name, sections())) return str("did you mean [{}]?", *near);
  for (const Key& key : run_config_keys()) {
    if (bare_name(key) == name) return str("did you mean {} in [{}]?", name, section_of(key));
  }
  return str("the sections are {}", fmt::join(sections(), ", "));
}

// A key and its value, from the file or from the command line; `where` is "run.toml:3" or "--train.steps=0".
void set(RunConfig& config, const std::string& name, const Written& value, const std::string& where,
         const std::string& seen) {
  const Key* key = find_key(name);
  USER_CHECK(key != nullptr, "{}: unknown key {}{}; {}", where, name, seen, suggestion(name));
  USER_CHECK(assign(*key, value, config), "{}: {}{}: must be {}", where, name, seen, allowed_text(*key));
}

// Keys that earlier versions named otherwise, as their checkpoints have them: old and new name.
constexpr std::array<std::pair<std::string_view, std::string_view>, 1> kFormerNames = {
    {{"train.grad_accum", "train.micro_batches"}}};

std::string name_now(const std::string& name) {
  const auto found = std::ranges::find(kFormerNames, name, &std::pair<std::string_view, std::string_view>::first);
  return found == kFormerNames.end() ? name : std::string(found->second);
}

void read_file(const std::string& path, RunConfig& config, std::set<std::string>& given, bool is_saved) {
  constexpr uint64_t kMaxBytes = 1 << 20;
  toml::table file;
  try {
    file = toml::parse(read_text(path, kMaxBytes), path);
  } catch (const toml::parse_error& error) {
    std::string what(error.description());
    std::ranges::replace_if(
        what, [](unsigned char c) { return std::iscntrl(c) != 0; }, ' ');  // it quotes the file
    user_error("{}:{}: not TOML: {}", path, error.source().begin.line, what);
  }
  for (const auto& [section, node] : file) {
    const std::string section_name(section.str());
    const toml::table* table = node.as_table();
    const std::string where = str("{}:{}", path, node.source().begin.line);
    if (table == nullptr) {
      user_error("{}: unknown key {} = {}; {}", where, section_name, text_of(node), suggestion_at_top(section_name));
    }
    USER_CHECK(std::ranges::count(sections(), section_name) == 1, "{}: unknown section [{}]; {}", where, section_name,
               suggestion_at_top(section_name));
    for (const auto& [key, value] : *table) {
      const std::string written_name = section_name + "." + std::string(key.str());
      const std::string name = is_saved ? name_now(written_name) : written_name;
      set(config, name, written(value), str("{}:{}", path, value.source().begin.line), " = " + text_of(value));
      given.insert(name);
    }
  }
}

// The command line's text as a TOML value; a text key takes it as it stands.
Written written_override(const Override& override, const Key& key) {
  RunConfig any;
  const Field field = key.field(any);
  const bool text_key = std::holds_alternative<std::string*>(field);
  const bool list_key = std::holds_alternative<std::vector<std::string>*>(field);
  if (text_key) return override.value;
  std::optional<toml::table> parsed;
  try {
    parsed = toml::parse("value = " + override.value);
  } catch (const toml::parse_error&) {
    // The text is no TOML but a plain word, such as a file name.
  }
  Written value = parsed && parsed->size() == 1 ? written(*parsed->get("value")) : Written(override.value);
  if (list_key && !std::holds_alternative<std::vector<std::string>>(value)) {
    value = std::vector<std::string>{override.value};
  }
  return value;
}

// Checks rules that involve several keys.
void check_together(const std::string& path, const RunConfig& config) {
  const auto& [weights, train] = std::tie(config.data.weights, config.data.train);
  USER_CHECK(weights.empty() || weights.size() == train.size(),
             "{}: data.weights has {} numbers and data.train {} entries; give one for each", path, weights.size(),
             train.size());
  const std::vector<int64_t>& buckets = config.data.buckets;
  const auto unordered = std::ranges::adjacent_find(buckets, std::ranges::greater_equal());
  USER_CHECK(unordered == buckets.end(),
             "{}: data.buckets = [{}]: {} does not come behind {}; give them in ascending order, each once", path,
             fmt::join(buckets, ", "), *(unordered + 1), *unordered);
  USER_CHECK(config.optim.master_weights || config.model.compute == "bfloat16",
             "{}: optim.master_weights = false is for model.compute = \"bfloat16\", found \"{}\"", path,
             config.model.compute);
  USER_CHECK(!config.train.fp8() || config.train.mode == "fast",
             "{}: train.precision = \"fp8\" is for train.mode = \"fast\", found \"{}\"", path, config.train.mode);
  const bool evaluates = config.data.eval_fraction > 0 || !config.data.eval.empty();
  USER_CHECK(evaluates || (!config.output.keep_best && config.output.eval_every == 0),
             "{}: data.eval_fraction = 0 holds nothing out, which {} needs; give data.eval or a fraction above 0", path,
             config.output.keep_best ? "output.keep_best" : "output.eval_every");
  USER_CHECK(!config.optim.nesterov || config.optim.momentum > 0,
             "{}: optim.nesterov = true needs an optim.momentum above 0", path);
  if (is_searched(config)) {
    USER_CHECK(
        config.parallel.pp == 1,
        "{}: parallel.pp = {} beside parallel.strategy = \"auto\": pipelines are not searched for yet; give the axes",
        path, config.parallel.pp);
    return;
  }
  if (config.parallel.dp_shard == -1 && config.parallel.ranks == 0) return;  // who starts the run says how many
  try {
    strategy_of(config);
  } catch (const UserError& error) {
    user_error("{}: {}", path, error.what());
  }
}

}  // namespace

RunConfig load_run_config(const std::string& path, const std::vector<Override>& overrides, bool is_saved) {
  RunConfig config;
  std::set<std::string>& given = config.given;
  read_file(path, config, given, is_saved);
  for (const Override& override : overrides) {
    const std::string where = str("--{}={}", override.key, override.value);
    const Key* key = find_key(override.key);
    const Written value = key == nullptr ? Written() : written_override(override, *key);
    set(config, override.key, value, where, "");
    given.insert(override.key);
  }
  for (const Key& key : run_config_keys()) {
    USER_CHECK(!key.allowed.required || given.contains(key.name), "{}: {} is missing: {}", path, key.name, key.help);
  }
  check_together(path, config);
  return config;
}

}  // namespace stepc::train
