// A Target as TOML text, and back.
#include <algorithm>
#include <array>
#include <cctype>
#include <sstream>
#include <vector>

#include <fmt/ranges.h>
#include <toml++/toml.h>

#include "base/check.h"
#include "base/json.h"
#include "cost/target.h"

namespace stepc {

namespace {

constexpr int64_t kMostThreads = 4096;
constexpr double kLowestRate = 1, kHighestRate = 1e18;  // a second; no machine is outside

struct Rate {
  std::string_view key;
  double Target::*value;
};
constexpr std::array<Rate, 3> kRates = {{{"flops_per_second", &Target::flops_per_second},
                                         {"narrow_flops_per_second", &Target::narrow_flops_per_second},
                                         {"bytes_per_second", &Target::bytes_per_second}}};

std::vector<std::string> feature_names() {
  std::vector<std::string> names;
  for (const FeatureName& feature : kFeatureNames) names.emplace_back(feature.name);
  return names;
}

std::vector<std::string> keys() {
  std::vector<std::string> names = {"threads", "features"};
  for (const Rate& rate : kRates) names.emplace_back(rate.key);
  return names;
}

// "target, line 3: threads = 0", for the start of a message.
std::string place(const std::string& key, const toml::node& node) {
  std::ostringstream written;
  written << key << " = ";
  node.visit([&](const auto& value) { written << value; });
  std::string text = written.str();
  std::ranges::replace_if(
      text, [](unsigned char c) { return std::iscntrl(c) != 0; }, ' ');
  constexpr size_t kLongest = 80;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return str("target, line {}: {}", node.source().begin.line, text);
}

int threads_of(const std::string& key, const toml::node& node) {
  const auto threads = node.is_integer() ? node.value<int64_t>() : std::nullopt;
  USER_CHECK(threads && *threads >= 1 && *threads <= kMostThreads, "{}: must be a whole number from 1 to {}",
             place(key, node), kMostThreads);
  return static_cast<int>(*threads);
}

double rate_of(const std::string& key, const toml::node& node) {
  const auto rate = node.is_number() ? node.value<double>() : std::nullopt;
  USER_CHECK(rate && *rate >= kLowestRate && *rate <= kHighestRate, "{}: must be a number from {} to {}",
             place(key, node), kLowestRate, kHighestRate);
  return *rate;
}

Features features_of(const std::string& key, const toml::node& node) {
  Features features;
  const toml::array* list = node.as_array();
  if (list == nullptr) {
    user_error("{}: must be a list of {}", place(key, node), fmt::join(feature_names(), ", "));
  }
  for (const toml::node& item : *list) {
    const auto name = item.value<std::string>();
    const auto* const feature = std::ranges::find(kFeatureNames, name.value_or(""), &FeatureName::name);
    USER_CHECK(feature != kFeatureNames.end(), "{}: no such feature; there are {}", place(key, item),
               fmt::join(feature_names(), ", "));
    features.*feature->there = true;
  }
  return features;
}

toml::table parse(std::string_view text) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    user_error("target, line {}: not TOML: {}", error.source().begin.line, in_quotes(error.description()));
  }
}

}  // namespace

std::string to_text(const Target& target) {
  std::vector<std::string> features;
  for (const auto& [name, there] : kFeatureNames)
    if (target.features.*there) features.push_back(str("\"{}\"", name));
  std::string text = str("threads = {}\nfeatures = [{}]\n", target.threads, fmt::join(features, ", "));
  for (const auto& [key, value] : kRates) text += str("{} = {}\n", key, target.*value);
  return text;
}

Target parse_target(std::string_view toml) {
  const toml::table table = parse(toml);
  Target target;
  for (const auto& [name, node] : table) {
    const std::string key(name.str());
    if (key == "threads") {
      target.threads = threads_of(key, node);
    } else if (key == "features") {
      target.features = features_of(key, node);
    } else if (const auto* const rate = std::ranges::find(kRates, key, &Rate::key); rate != kRates.end()) {
      target.*rate->value = rate_of(key, node);
    } else {
      const auto near = nearest(key, keys());
      user_error("{}: unknown key; {}", place(key, node),
                 near ? str("did you mean {}?", *near) : str("the keys are {}", fmt::join(keys(), ", ")));
    }
  }
  USER_CHECK(table.contains("threads"), "target: threads is missing: give the number of threads, from 1 to {}",
             kMostThreads);
  USER_CHECK(table.contains("features"), "target: features is missing: give a list of {}, or []",
             fmt::join(feature_names(), ", "));
  return target;
}

}  // namespace stepc
