// A Target as TOML text, and back.
#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <utility>
#include <vector>

#include <fmt/ranges.h>
#include <toml++/toml.h>

#include "base/check.h"
#include "base/json.h"
#include "cost/target.h"
#include "cost/target_reader.h"

namespace stepc {

namespace {

using namespace target_text;  // NOLINT(google-build-using-namespace)

constexpr int64_t kMostThreads = 4096;
struct Rate {
  std::string_view key;
  double Target::*value;
};
constexpr std::array<Rate, 3> kRates = {{{"flops_per_second", &Target::flops_per_second},
                                         {"narrow_flops_per_second", &Target::narrow_flops_per_second},
                                         {"bytes_per_second", &Target::bytes_per_second}}};

struct KindRate {
  std::string_view key;
  double Rates::*value;
};
constexpr auto kKindRates = std::to_array<KindRate>({
    {"instruction_seconds", &Rates::instruction_seconds},
    {"aten_call_seconds", &Rates::aten_call_seconds},
    {"aten_reduction_seconds", &Rates::aten_reduction_seconds},
    {"aten_norm_seconds", &Rates::aten_norm_seconds},
    {"aten_index_seconds", &Rates::aten_index_seconds},
    {"fork_seconds", &Rates::fork_seconds},
    {"input_seconds", &Rates::input_seconds},
    {"host_number_seconds", &Rates::host_number_seconds},
    {"loss_seconds", &Rates::loss_seconds},
    {"seed_seconds", &Rates::seed_seconds},
    {"lane_ops_per_second", &Rates::lane_ops_per_second},
    {"lane_roots_per_second", &Rates::lane_roots_per_second},
    {"scalar_ops_per_second", &Rates::scalar_ops_per_second},
    {"function_calls_per_second", &Rates::function_calls_per_second},
    {"gathers_per_second", &Rates::gathers_per_second},
    {"aten_flops_per_second", &Rates::aten_flops_per_second},
    {"aten_roots_per_second", &Rates::aten_roots_per_second},
    {"aten_strided_bytes_per_second", &Rates::aten_strided_bytes_per_second},
    {"aten_rows_per_second", &Rates::aten_rows_per_second},
    {"aten_reduction_bytes_per_second", &Rates::aten_reduction_bytes_per_second},
    {"aten_norm_bytes_per_second", &Rates::aten_norm_bytes_per_second},
    {"aten_pooling_bytes_per_second", &Rates::aten_pooling_bytes_per_second},
    {"aten_scatter_bytes_per_second", &Rates::aten_scatter_bytes_per_second},
    {"aten_draws_per_second", &Rates::aten_draws_per_second},
    {"link_latency_seconds", &Rates::link_latency_seconds},
    {"link_bytes_per_second", &Rates::link_bytes_per_second},
});

std::string_view kind_name(bool depthwise) { return depthwise ? "depthwise" : "dense"; }

std::vector<std::string> feature_names() {
  std::vector<std::string> names;
  for (const FeatureName& feature : kFeatureNames) names.emplace_back(feature.name);
  return names;
}

std::vector<std::string> keys() {
  std::vector<std::string> names = {"threads", "cpu", "features"};
  for (const Rate& rate : kRates) names.emplace_back(rate.key);
  for (const std::string_view table : {"rates", "streams", "matmuls", "attentions", "convolutions", "calls"})
    names.emplace_back(table);
  return names;
}

int threads_of(const std::string& key, const toml::node& node) {
  const auto threads = node.is_integer() ? node.value<int64_t>() : std::nullopt;
  USER_CHECK(threads && *threads >= 1 && *threads <= kMostThreads, "{}: must be a whole number from 1 to {}",
             place(key, node), kMostThreads);
  return static_cast<int>(*threads);
}

// As LLVM writes them.
std::string name_of_cpu(const std::string& key, const toml::node& node) {
  const auto name = node.value<std::string>();
  const auto is_of_name = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.'; };
  USER_CHECK(name && !name->empty() && std::ranges::all_of(*name, is_of_name), "{}: must be the name of a CPU",
             place(key, node));
  return *name;
}

void read_rates(const toml::node& node, Rates& rates) {
  const toml::table* table = node.as_table();
  if (table == nullptr) user_error("{}: must be a table, [rates]", place("rates", node));
  for (const auto& [name, value] : *table) {
    const std::string key(name.str());
    const auto* const rate = std::ranges::find(kKindRates, key, &KindRate::key);
    if (rate == kKindRates.end()) {
      std::vector<std::string> known;
      for (const KindRate& one : kKindRates) known.emplace_back(one.key);
      unknown_key(key, value, known);
    }
    rates.*rate->value = key.ends_with("_seconds") ? target_text::seconds_of(key, value) : rate_of(key, value);
  }
}

// Whether `key` is one of the tables.
bool read_table(const std::string& key, const toml::node& node, Rates& rates) {
  if (key == "rates") {
    read_rates(node, rates);
  } else if (key == "streams") {
    read_rows(key, node, rates.streams, [](TableReader& row) {
      return StreamRate{.bytes = static_cast<double>(row.size("bytes")),
                        .bytes_per_second = row.rate("bytes_per_second")};
    });
    for (size_t i = 1; i < rates.streams.size(); ++i)
      USER_CHECK(rates.streams[i - 1].bytes < rates.streams[i].bytes,
                 "target, line {}: streams: bytes must grow from row to row",
                 node.as_array()->get(i)->source().begin.line);
  } else if (key == "matmuls") {
    read_rows(key, node, rates.matmuls, [](TableReader& row) {
      return MatmulRate{.owner = row.owner(),
                        .dtype = row.dtype(),
                        .rows = row.size("rows"),
                        .columns = row.size("columns"),
                        .inner = row.size("inner"),
                        .flops_per_second = row.rate("flops_per_second"),
                        .batch = row.has("batch") ? row.size("batch") : 1};
    });
  } else if (key == "attentions") {
    read_rows(key, node, rates.attentions, [](TableReader& row) {
      return AttentionRate{.owner = row.owner(),
                           .dtype = row.dtype(),
                           .backward = row.backward(),
                           .length = row.size("length"),
                           .width = row.size("width"),
                           .flops_per_second = row.rate("flops_per_second")};
    });
  } else if (key == "convolutions") {
    read_rows(key, node, rates.convolutions, [](TableReader& row) {
      return ConvolutionRate{.dtype = row.dtype(),
                             .backward = row.backward(),
                             .depthwise = row.one_of("kind", {"dense", "depthwise"}) == "depthwise",
                             .pixels = row.size("pixels"),
                             .channels = row.size("channels"),
                             .inner = row.size("inner"),
                             .flops_per_second = row.rate("flops_per_second")};
    });
  } else if (key == "calls") {
    std::set<std::pair<std::string, DType>> seen;
    read_rows(key, node, rates.calls, [&](TableReader& row) {
      CallRate rate{.op = row.op("op"),
                    .dtype = row.dtype(),
                    .seconds = row.seconds("seconds"),
                    .bytes_per_second = row.rate("bytes_per_second")};
      if (!seen.emplace(rate.op, rate.dtype).second)
        row.refuse(str("calls has {} in {} twice", rate.op, name_of(rate.dtype)));
      return rate;
    });
  } else {
    return false;
  }
  return true;
}

// Somebody may ask for any of these.
void check_rows(const Rates& rates) {
  for (const KernelOwner owner : {KernelOwner::kLibrary, KernelOwner::kBlocked}) {
    const auto is_of = [owner](const auto& rate) { return rate.owner == owner && rate.dtype == DType::kF32; };
    const auto is_of_one_pair = [&](const MatmulRate& rate) { return is_of(rate) && rate.batch == 1; };
    USER_CHECK(std::ranges::any_of(rates.matmuls, is_of_one_pair), "target: matmuls has no row of kernel \"{}\" in f32",
               name_of(owner));
    for (const bool backward : {false, true})
      USER_CHECK(
          std::ranges::any_of(rates.attentions,
                              [&](const AttentionRate& rate) { return is_of(rate) && rate.backward == backward; }),
          "target: attentions has no {} row of kernel \"{}\" in f32", pass_name(backward), name_of(owner));
  }
  for (const bool backward : {false, true})
    for (const bool depthwise : {false, true})
      USER_CHECK(std::ranges::any_of(rates.convolutions,
                                     [&](const ConvolutionRate& rate) {
                                       return rate.dtype == DType::kF32 && rate.backward == backward &&
                                              rate.depthwise == depthwise;
                                     }),
                 "target: convolutions has no {} {} row in f32", pass_name(backward), kind_name(depthwise));
}

std::string rates_text(const Rates& rates) {
  std::string text = "\n[rates]\n";
  for (const auto& [key, value] : kKindRates) text += str("{} = {}\n", key, rates.*value);
  text += "\n# What was last touched so many bytes of traffic ago comes back at this rate.\n";
  for (const StreamRate& one : rates.streams)
    text += str("[[streams]]\nbytes = {:.0f}\nbytes_per_second = {}\n", one.bytes, one.bytes_per_second);
  text += "\n# (rows, inner) x (inner, columns); batch: so many of them in a call\n";
  for (const MatmulRate& one : rates.matmuls) {
    text +=
        str("[[matmuls]]\nkernel = \"{}\"\ndtype = \"{}\"\nrows = {}\ncolumns = {}\ninner = {}\n"
            "flops_per_second = {}\n",
            name_of(one.owner), name_of(one.dtype), one.rows, one.columns, one.inner, one.flops_per_second);
    if (one.batch > 1) text += str("batch = {}\n", one.batch);
  }
  text += "\n# of as many keys as queries\n";
  for (const AttentionRate& one : rates.attentions)
    text += str(
        "[[attentions]]\nkernel = \"{}\"\ndtype = \"{}\"\npass = \"{}\"\nlength = {}\nwidth = {}\n"
        "flops_per_second = {}\n",
        name_of(one.owner), name_of(one.dtype), pass_name(one.backward), one.length, one.width, one.flops_per_second);
  text += "\n# so many channels of so many pixels together, each the sum of so many products\n";
  for (const ConvolutionRate& one : rates.convolutions)
    text +=
        str("[[convolutions]]\ndtype = \"{}\"\npass = \"{}\"\nkind = \"{}\"\npixels = {}\nchannels = {}\ninner = {}\n"
            "flops_per_second = {}\n",
            name_of(one.dtype), pass_name(one.backward), kind_name(one.depthwise), one.pixels, one.channels, one.inner,
            one.flops_per_second);
  text += "\n# whatever its size, and beyond that\n";
  for (const CallRate& one : rates.calls)
    text += str("[[calls]]\nop = \"{}\"\ndtype = \"{}\"\nseconds = {}\nbytes_per_second = {}\n", one.op,
                name_of(one.dtype), one.seconds, one.bytes_per_second);
  return text;
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

}  // namespace

void target_text::slow_down(Target& target, double times) {
  for (const Rate& rate : kRates) target.*rate.value /= times;
  Rates& rates = target.rates;
  for (const KindRate& rate : kKindRates) {
    if (rate.key.starts_with("link_")) continue;
    (rates.*rate.value) *= rate.key.ends_with("_seconds") ? times : 1 / times;
  }
  for (StreamRate& one : rates.streams) one.bytes_per_second /= times;
  for (MatmulRate& one : rates.matmuls) one.flops_per_second /= times;
  for (AttentionRate& one : rates.attentions) one.flops_per_second /= times;
  for (ConvolutionRate& one : rates.convolutions) one.flops_per_second /= times;
  for (CallRate& one : rates.calls) one.seconds *= times, one.bytes_per_second /= times;
}

std::string to_text(const Target& target) {
  if (target.gpu) return gpu_text(target);
  std::vector<std::string> features;
  for (const auto& [name, there] : kFeatureNames)
    if (target.features.*there) features.push_back(str("\"{}\"", name));
  std::string text = str("threads = {}\n", target.threads);
  if (!target.cpu.empty()) text += str("cpu = \"{}\"\n", target.cpu);
  text += str("features = [{}]\n", fmt::join(features, ", "));
  for (const auto& [key, value] : kRates) text += str("{} = {}\n", key, target.*value);
  return text + rates_text(target.rates);
}

Target parse_target(std::string_view toml) {
  const toml::table table = target_text::parse(toml);
  if (table.contains("device")) return read_gpu(table);
  Target target;
  for (const auto& [name, node] : table) {
    const std::string key(name.str());
    if (key == "threads") {
      target.threads = threads_of(key, node);
    } else if (key == "cpu") {
      target.cpu = name_of_cpu(key, node);
    } else if (key == "features") {
      target.features = features_of(key, node);
    } else if (const auto* const rate = std::ranges::find(kRates, key, &Rate::key); rate != kRates.end()) {
      target.*rate->value = rate_of(key, node);
    } else if (!read_table(key, node, target.rates)) {
      unknown_key(key, node, keys());
    }
  }
  check_rows(target.rates);
  USER_CHECK(table.contains("threads"), "target: threads is missing: give the number of threads, from 1 to {}",
             kMostThreads);
  USER_CHECK(table.contains("features"), "target: features is missing: give a list of {}, or []",
             fmt::join(feature_names(), ", "));
  return target;
}

}  // namespace stepc
