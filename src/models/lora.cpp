#include "models/lora.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include <ATen/CPUGeneratorImpl.h>

#include "base/check.h"
#include "base/json.h"
#include "models/config_limits.h"
#include "models/family.h"
#include "models/layers.h"

namespace stepc::models {
namespace {
using nlohmann::json;

constexpr const char* kAllLinear = "all-linear";
constexpr int64_t kMaxRank = 1 << 16;

// What says nothing about the adapter's arithmetic, or is checked by name.
const std::set<std::string> kKnownFields = {
    "peft_type",     "r",        "lora_alpha",     "lora_dropout",      "use_rslora",       "target_modules",
    "auto_mapping",  "revision", "task_type",      "inference_mode",    "peft_version",     "base_model_name_or_path",
    "megatron_core", "bias",     "fan_in_fan_out", "init_lora_weights", "qalora_group_size"};

bool is_nothing(const json& value) {
  return value.is_null() || value == false || ((value.is_structured() || value.is_string()) && value.empty());
}

template <class T>
T field(const json& object, const char* name, T fallback, double low, double high) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return fallback;
  const bool fits = std::is_integral_v<T> ? found->is_number_integer() : found->is_number();
  const double number = fits ? found->template get<double>() : NAN;
  USER_CHECK(number >= low && number <= high, "adapter_config.json: {} is {}; expected a number from {} to {}", name,
             shown(*found), low, high);
  return found->template get<T>();
}

std::vector<std::string> read_targets(const json& value) {
  if (value == kAllLinear) return {kAllLinear};
  std::vector<std::string> targets;
  bool strings = value.is_array() && !value.empty();
  if (strings)
    for (const json& each : value) strings = strings && each.is_string();
  USER_CHECK(strings, "adapter_config.json: target_modules is {}; stepc supports a list of names, or \"{}\"",
             shown(value), kAllLinear);
  for (const json& each : value) targets.push_back(each.get<std::string>());
  std::ranges::sort(targets);
  return targets;
}

bool targets(const LoraConfig& config, const std::string& path, const std::string& target) {
  return config.target_modules == std::vector<std::string>{kAllLinear} || path == target ||
         path.ends_with("." + target);
}

std::string peft_name(const std::string& parameter) { return str("base_model.model.{}.weight", parameter); }

bool is_adapter(const std::string& name) { return name.ends_with(".lora_A") || name.ends_with(".lora_B"); }
}  // namespace

LoraConfig LoraConfig::from_json(std::string_view text) {
  const json object = parse_json(text, "adapter_config.json");
  USER_CHECK(object.is_object(), "adapter_config.json is {}; expected an object", shown(object));
  const json type = object.value("peft_type", json());
  USER_CHECK(type == "LORA", "adapter_config.json: peft_type is {}; stepc supports only \"LORA\"", shown(type));
  const json bias = object.value("bias", json("none"));
  USER_CHECK(bias == "none", "adapter_config.json: bias is {}; stepc supports only \"none\"", shown(bias));
  for (const auto& [name, value] : object.items())
    USER_CHECK(kKnownFields.contains(name) || is_nothing(value),
               "adapter_config.json: {} is {}; stepc supports plain LoRA without it", name, shown(value));
  const json stabilized = object.value("use_rslora", json(false));
  USER_CHECK(stabilized.is_boolean() || stabilized.is_null(),
             "adapter_config.json: use_rslora is {}; expected true or false", shown(stabilized));
  LoraConfig config;
  config.rank = field<int64_t>(object, "r", config.rank, 1, kMaxRank);
  config.alpha = field<double>(object, "lora_alpha", config.alpha, 0.0, 1e6);
  config.dropout = field<double>(object, "lora_dropout", config.dropout, 0.0, kMaxDropout);
  config.rank_stabilized = stabilized == true;
  config.target_modules = read_targets(object.value("target_modules", json()));
  const json base = object.value("base_model_name_or_path", json());
  if (base.is_string()) config.base_model = base.get<std::string>();
  config.source = object.dump();
  return config;
}

std::string LoraConfig::to_json(const DecoderConfig& model) const {
  json object = source.empty() ? json::object() : json::parse(source);
  object["peft_type"] = "LORA";
  object["task_type"] = "CAUSAL_LM";
  object["base_model_name_or_path"] = base_model.empty() ? json() : json(base_model);
  object["bias"] = "none";
  object["fan_in_fan_out"] = family_of(model.model_type).names.transposed;
  object["inference_mode"] = true;
  object["r"] = rank;
  object["lora_alpha"] = alpha == std::floor(alpha) ? json(static_cast<int64_t>(alpha)) : json(alpha);
  object["lora_dropout"] = dropout;
  object["use_rslora"] = rank_stabilized;
  object["target_modules"] =
      target_modules == std::vector<std::string>{kAllLinear} ? json(kAllLinear) : json(target_modules);
  return object.dump(2) + "\n";
}

void add_adapters(const Decoder& model, const LoraConfig& config, uint64_t seed) {
  std::set<std::string> unmatched(config.target_modules.begin(), config.target_modules.end());
  USER_CHECK(!unmatched.empty(), "the adapter has no target modules; name at least one, such as \"q_proj\"");
  std::vector<std::shared_ptr<Linear>> adapted;
  for (const auto& [path, linear] : model->layer_matrices()) {
    bool wanted = false;
    for (const std::string& target : config.target_modules) {
      if (!targets(config, path, target)) continue;
      wanted = true;
      unmatched.erase(target);
    }
    if (wanted) adapted.push_back(linear);
  }
  if (!unmatched.empty()) {
    std::set<std::string> names;
    for (const auto& [path, linear] : model->layer_matrices()) names.insert(linear->name());
    user_error("the adapter's target module {} names no matrix of the model's layers; those are {}",
               in_quotes(*unmatched.begin()), fmt::join(names, ", "));
  }
  for (const auto& item : model->named_parameters()) item.value().requires_grad_(false);
  const auto rank = static_cast<double>(config.rank);
  const LowRank low_rank = {.rank = config.rank,
                            .scaling = config.alpha / (config.rank_stabilized ? std::sqrt(rank) : rank),
                            .dropout = config.dropout};
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (const auto& linear : adapted) linear->adapt(low_rank, generator);
}

NamedTensors adapter_state(const Decoder& model) {
  NamedTensors state;
  for (const auto& item : model->named_parameters())
    if (is_adapter(item.key())) state.emplace_back(peft_name(item.key()), item.value());
  return state;
}

void load_adapters(const Decoder& model, const NamedTensors& state) {
  std::map<std::string, at::Tensor> given(state.begin(), state.end());
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // to, from
  for (const auto& [name, own] : adapter_state(model)) {
    const auto found = given.find(name);
    USER_CHECK(found != given.end(), "the adapter lacks {}, which its config asks for", name);
    USER_CHECK(found->second.sizes() == own.sizes() && found->second.is_floating_point(),
               "{} is {} ({}) in the adapter; expected floating-point numbers ({})", name,
               at::toString(found->second.scalar_type()), fmt::join(found->second.sizes(), ", "),
               fmt::join(own.sizes(), ", "));
    copies.emplace_back(own, found->second);
    given.erase(found);
  }
  USER_CHECK(given.empty(), "the adapter holds {}, which its config has no place for", given.begin()->first);
  const at::NoGradGuard no_grad;
  for (const auto& [to, from] : copies) to.copy_(from);
}

NamedTensors trainable_parameters(const Decoder& model) {
  NamedTensors parameters;
  for (const auto& item : model->named_parameters())
    if (item.value().requires_grad()) parameters.emplace_back(item.key(), item.value());
  return parameters;
}

}  // namespace stepc::models
