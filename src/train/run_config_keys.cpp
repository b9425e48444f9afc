#include "train/run_config_keys.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <type_traits>
#include <utility>

#include <fmt/ranges.h>

#include "base/text.h"

namespace stepc::train {
namespace {

constexpr double kMost = 1e9;  // of counts: far above any run, far below overflow of their products

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

// The field `section.*member` of a config.
template <class Section, class Member>
std::function<Field(RunConfig&)> at(Section RunConfig::*section, Member Section::*member) {
  return [=](RunConfig& config) -> Field { return &(config.*section.*member); };
}

Allowed at_least(double least) { return {.least = least, .most = kMost}; }
Allowed between(double least, double most) { return {.least = least, .most = most}; }
Allowed above(double least, double most) { return {.least = least, .most = most, .above_least = true}; }
Allowed below(double least, double most) { return {.least = least, .most = most, .below_most = true}; }
Allowed one_of(std::vector<std::string> choices) { return {.choices = std::move(choices)}; }

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

}  // namespace

const std::vector<Key>& run_config_keys() {
  using R = RunConfig;
  const Allowed required{.required = true};
  static const std::vector<Key> kKeys = {
      {"model.path", at(&R::model, &R::Model::path), required,
       "Hugging Face model directory to start from (`stepc init` makes one)"},
      {"model.compute", at(&R::model, &R::Model::compute), one_of({"bfloat16", "float32"}),
       "dtype of weights and activations; the optimizer keeps float32 master weights"},

      {"data.train", at(&R::data, &R::Data::train), required, "text files (UTF-8), read in this order"},
      {"data.eval_fraction", at(&R::data, &R::Data::eval_fraction), above(0, 0.5),
       "part of the text, at its end, held out from training"},
      {"data.eval_windows", at(&R::data, &R::Data::eval_windows), at_least(1),
       "held-out windows per evaluation, evenly spread"},
      {"data.seq_len", at(&R::data, &R::Data::seq_len), between(2, 1e6), "tokens per sequence"},

      {"train.steps", at(&R::train, &R::Train::steps), at_least(1), "optimizer steps"},
      {"train.batch_size", at(&R::train, &R::Train::batch_size), between(1, 1e6), "sequences per micro-batch"},
      {"train.grad_accum", at(&R::train, &R::Train::grad_accum), between(1, 1e6), "micro-batches per optimizer step"},
      {"train.seed", at(&R::train, &R::Train::seed), at_least(0), "of the data order and of the sample"},
      {"train.threads", at(&R::train, &R::Train::threads), between(0, 4096), "CPU threads; 0: all cores"},
      {"train.mode", at(&R::train, &R::Train::mode), one_of({"exact", "fast", "eager"}),
       "exact: captured, planned and replayed, bit-equal to eager; fast: as one fused graph; eager: op by op"},

      {"optim.lr", at(&R::optim, &R::Optim::lr), above(0, 10), "peak learning rate of AdamW"},
      {"optim.min_lr_ratio", at(&R::optim, &R::Optim::min_lr_ratio), between(0, 1),
       "last learning rate / peak, at the end of the cosine"},
      {"optim.warmup_steps", at(&R::optim, &R::Optim::warmup_steps), at_least(0), "steps of linear warm-up"},
      {"optim.weight_decay", at(&R::optim, &R::Optim::weight_decay), between(0, 10),
       "decoupled; of matrices, not of norms"},
      {"optim.betas", at(&R::optim, &R::Optim::betas), below(0, 1), "decay rates of AdamW's first and second moment"},
      {"optim.eps", at(&R::optim, &R::Optim::eps), above(0, 1), "AdamW's epsilon"},
      {"optim.clip", at(&R::optim, &R::Optim::clip), above(0, kMost), "largest norm of the whole gradient"},

      {"output.dir", at(&R::output, &R::Output::dir), required,
       "directory of this run: checkpoints, metrics.jsonl, the final model"},
      {"output.save_every", at(&R::output, &R::Output::save_every), at_least(0),
       "steps between checkpoints; 0: only at the end or when stopped by a signal"},
      {"output.keep_last", at(&R::output, &R::Output::keep_last), at_least(1), "newest checkpoints to keep"},
      {"output.log_every", at(&R::output, &R::Output::log_every), at_least(1),
       "steps between lines of metrics.jsonl, and of progress without a terminal"},
      {"output.eval_every", at(&R::output, &R::Output::eval_every), at_least(0),
       "steps between evaluations; 0: only before and after"},
      {"output.sample_tokens", at(&R::output, &R::Output::sample_tokens), between(0, 1e5),
       "length of the sample printed at the end; 0: none"},
  };
  return kKeys;
}

std::string section_of(const Key& key) { return key.name.substr(0, key.name.find('.')); }
std::string bare_name(const Key& key) { return key.name.substr(key.name.find('.') + 1); }

std::string allowed_text(const Key& key) {
  RunConfig any;
  const std::string bounds = bounds_text(key.allowed);
  const auto with_bounds = [&](const char* noun) { return bounds.empty() ? noun : str("{}, {}", noun, bounds); };
  return std::visit(Overloaded{
                        [&](int64_t*) { return with_bounds("an integer"); },
                        [&](double*) { return with_bounds("a number"); },
                        [&](std::array<double, 2>*) { return with_bounds("two numbers"); },
                        [&](std::vector<std::string>*) { return std::string("a list of texts, not empty"); },
                        [&](std::string*) {
                          return key.allowed.choices.empty() ? std::string("a text, not empty")
                                                             : str("one of {}", fmt::join(key.allowed.choices, ", "));
                        },
                    },
                    key.field(any));
}

bool assign(const Key& key, const Written& written, RunConfig& config) {
  const auto number = [&](const Written& value) -> double {
    if (const auto* integer = std::get_if<int64_t>(&value)) return static_cast<double>(*integer);
    if (const auto* real = std::get_if<double>(&value)) return *real;
    return std::numeric_limits<double>::quiet_NaN();
  };
  const auto store_integer = [&](int64_t* field) {
    if (!std::holds_alternative<int64_t>(written) || !within(number(written), key.allowed)) return false;
    *field = std::get<int64_t>(written);
    return true;
  };
  const auto store_number = [&](double* field) {
    if (!within(number(written), key.allowed)) return false;
    *field = number(written);
    return true;
  };
  const auto store_pair = [&](std::array<double, 2>* field) {
    const auto* list = std::get_if<std::vector<double>>(&written);
    if (list == nullptr || list->size() != 2) return false;
    if (!std::ranges::all_of(*list, [&](double value) { return within(value, key.allowed); })) return false;
    std::ranges::copy(*list, field->begin());
    return true;
  };
  const auto store_text = [&](std::string* field) {
    const auto* text = std::get_if<std::string>(&written);
    if (text == nullptr || text->empty()) return false;
    if (!key.allowed.choices.empty() && std::ranges::find(key.allowed.choices, *text) == key.allowed.choices.end())
      return false;
    *field = *text;
    return true;
  };
  const auto store_list = [&](std::vector<std::string>* field) {
    const auto* list = std::get_if<std::vector<std::string>>(&written);
    if (list == nullptr || list->empty() || std::ranges::find(*list, "") != list->end()) return false;
    *field = *list;
    return true;
  };
  return std::visit(Overloaded{store_integer, store_number, store_pair, store_text, store_list}, key.field(config));
}

std::string value_text(const Key& key, const RunConfig& config) {
  RunConfig copy = config;
  return std::visit(Overloaded{
                        [](int64_t* field) { return str("{}", *field); },
                        [](double* field) { return float_text(*field); },
                        [](std::string* field) { return in_toml_quotes(*field); },
                        [](std::array<double, 2>* field) {
                          return str("[{}, {}]", float_text((*field)[0]), float_text((*field)[1]));
                        },
                        [](std::vector<std::string>* field) {
                          std::vector<std::string> items;
                          for (const std::string& item : *field) items.push_back(in_toml_quotes(item));
                          return str("[{}]", fmt::join(items, ", "));
                        },
                    },
                    key.field(copy));
}

std::string to_toml(const RunConfig& config) {
  std::string text;
  std::string section;
  for (const Key& key : run_config_keys()) {
    if (section_of(key) != section) text += str("{}[{}]\n", text.empty() ? "" : "\n", section_of(key));
    section = section_of(key);
    text += str("{} = {}\n", bare_name(key), value_text(key, config));
  }
  return text;
}

std::string keys_help() {
  const RunConfig defaults;
  std::string text;
  std::string section;
  for (const Key& key : run_config_keys()) {
    if (section_of(key) != section) {
      section = section_of(key);
      text += str("[{}]\n", section);
    }
    const std::string given = key.allowed.required ? "required" : value_text(key, defaults);
    text += str("  {:<14} {:<12} {}\n{:30}({})\n", bare_name(key), given, key.help, "", allowed_text(key));
  }
  return text;
}

}  // namespace stepc::train
