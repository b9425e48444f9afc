// The one table of run.toml: parsing, `stepc train --help` and the documentation are printed from it. A row is
//
//   key            field of RunConfig     bounds        help
//   train.steps    &config.train.steps    at least 1    optimizer steps
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "train/config/run_config.h"

namespace stepc::train {

// Where a key is stored; the alternative is the key's type.
using Field = std::variant<int64_t*, double*, bool*, std::string*, std::vector<std::string>*, std::vector<double>*,
                           std::vector<int64_t>*, std::vector<ShardRule>*, std::array<double, 2>*>;
// What a person wrote, brought to a type that some key has. monostate: none of them (a date, a table, a mixed list).
using Written = std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<int64_t>,
                             std::vector<double>, std::vector<std::string>, std::vector<ShardRule>>;

// What a key allows: the bounds of a number (or of each number of a pair), the choices of a text.
struct Allowed {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool above_least = false;  // the least value itself is not allowed
  bool below_most = false;
  std::vector<std::string> choices = {};  // empty: any text; "every:N" stands for every integer N from 1 on
  bool may_be_empty = false;              // of a text or a list
  bool required = false;                  // the key must be given
  std::string example = {};               // of a required key, as TOML text
};

struct Key {
  std::string name;  // "train.steps"
  std::function<Field(RunConfig&)> field;
  Allowed allowed;
  std::string help;
  std::vector<std::string> optimizers = {};  // that read it; empty: all, or it is no matter of theirs
  std::vector<std::string> elsewhere = {};   // what others call it: torchtitan, accelerate, DeepSpeed, Megatron
};

const std::vector<Key>& run_config_keys();

// "train.steps" -> "train", "steps".
std::string section_of(const Key& key);
std::string bare_name(const Key& key);

// "an integer, at least 1"; "a number above 0, at most 1"; "one of bfloat16, float32".
std::string allowed_text(const Key& key);

// Stores `written` if the key allows it. False: nothing is stored.
bool assign(const Key& key, const Written& written, RunConfig& config);

// The value that `config` has for the key, as TOML text.
std::string value_text(const Key& key, const RunConfig& config);

// Of each key that has another value than its default and is for optimizers that are not chosen, or for windows where
// rows are documents: a line that says so.
std::vector<std::string> without_effect(const RunConfig& config);

// The whole config as a run.toml that reads back as the same values.
std::string to_toml(const RunConfig& config);

// The whole table as a person reads it: for --help, as a run.toml of defaults with comments, in which the required keys
// have examples, and as docs/config.md.
std::string keys_help();
std::string default_toml();
std::string config_page();

}  // namespace stepc::train
