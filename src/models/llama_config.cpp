#include "models/llama_config.h"

#include <array>
#include <cmath>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/json.h"

namespace stepc::models {
namespace {
using nlohmann::json;

// Upper bounds of hostile files: far above any model, and low enough that no product below leaves int64_t.
constexpr int64_t kMaxVocab = int64_t{1} << 26;
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 4096;
constexpr int64_t kMaxPositions = int64_t{1} << 30;

constexpr std::array<std::string_view, 4> kDtypes = {"float32", "bfloat16", "float16", "float64"};

// Takes fields out of a JSON object; what is left at the end are the fields that stepc does not know.
class Fields {
 public:
  explicit Fields(json object) : object_(std::move(object)) {}

  // Removes and returns the field; null when it is absent.
  json take(const std::string& name) {
    const auto found = object_.find(name);
    if (found == object_.end()) return nullptr;
    json value = std::move(*found);
    object_.erase(found);
    return value;
  }
  [[nodiscard]] bool has(const std::string& name) const { return object_.contains(name); }

  int64_t size(const std::string& name, int64_t highest, std::optional<int64_t> fallback = {}) {
    const json value = take(name);
    if (value.is_null()) {
      USER_CHECK(fallback.has_value(), "config.json: {} is missing", name);
      return *fallback;
    }
    return integer(name, value, 1, highest);
  }

  double number(const std::string& name, double fallback, double low, double high) {
    const json value = take(name);
    if (value.is_null()) return fallback;
    const double number = value.is_number() ? value.get<double>() : NAN;
    USER_CHECK(number >= low && number <= high, "config.json: {} is {}; expected a number from {} to {}", name,
               shown(value), low, high);
    return number;
  }

  bool flag(const std::string& name) {
    const json value = take(name);
    USER_CHECK(value.is_null() || value.is_boolean(), "config.json: {} is {}; expected true or false", name,
               shown(value));
    return value.is_boolean() && value.get<bool>();
  }

  // A field that stepc implements for one value only; absent and null mean that value.
  void only(const std::string& name, const json& supported) {
    const json value = take(name);
    USER_CHECK(value.is_null() || value == supported, "config.json: {} is {}; stepc supports only {}", name,
               shown(value), supported.dump());
  }

  static int64_t integer(const std::string& name, const json& value, int64_t low, int64_t high) {
    const bool fits =
        value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t{INT64_MAX} : value.is_number_integer();
    USER_CHECK(fits && value.get<int64_t>() >= low && value.get<int64_t>() <= high,
               "config.json: {} is {}; expected an integer from {} to {}", name, shown(value), low, high);
    return value.get<int64_t>();
  }

  [[nodiscard]] std::string rest() const { return object_.dump(); }

 private:
  json object_;
};

json parse_object(std::string_view text) {
  json object = parse_json(text, "config.json");
  USER_CHECK(object.is_object(), "config.json is {}; expected an object", shown(object));
  return object;
}

void refuse_what_is_not_llama(Fields& fields) {
  const json model_type = fields.take("model_type");
  USER_CHECK(model_type == "llama", "config.json: model_type is {}; stepc supports only \"llama\"", shown(model_type));
  json architecture = fields.take("architectures");
  if (architecture.is_array() && architecture.size() == 1) architecture = json(architecture[0]);
  USER_CHECK(architecture.is_null() || architecture == "LlamaForCausalLM",
             "config.json: architectures is {}; stepc supports only \"LlamaForCausalLM\"", shown(architecture));
  fields.only("hidden_act", "silu");
  fields.only("pretraining_tp", 1);
  fields.only("attention_dropout", 0.0);
  fields.only("partial_rotary_factor", 1.0);
  USER_CHECK(fields.take("quantization_config").is_null(),
             "config.json: quantization_config is set; stepc trains weights that are not quantized");
}

// Transformers 4 writes rope_theta and rope_scaling, transformers 5 one object rope_parameters.
void read_rope(Fields& fields, LlamaConfig& config) {
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const json value = fields.take(name);
    if (value.is_null()) continue;
    USER_CHECK(value.is_object(), "config.json: {} is {}; expected an object or null", name, shown(value));
    Fields inner(value);
    const json old_name = inner.take("type");
    const json type = inner.has("rope_type") ? inner.take("rope_type") : old_name;
    USER_CHECK(type == "default", "config.json: {} has rope_type {}; stepc supports only \"default\"", name,
               shown(type));
    inner.only("partial_rotary_factor", 1.0);
    config.rope_theta = inner.number("rope_theta", config.rope_theta, 1.0, 1e12);
  }
  config.rope_theta = fields.number("rope_theta", config.rope_theta, 1.0, 1e12);
}

void read_dtype(Fields& fields, LlamaConfig& config) {
  for (const char* name : {"torch_dtype", "dtype"}) {
    const json value = fields.take(name);
    if (value.is_null()) continue;
    for (const std::string_view dtype : kDtypes)
      if (value == dtype) config.dtype = dtype;
    USER_CHECK(value == config.dtype, "config.json: {} is {}; expected one of {}", name, shown(value),
               fmt::join(kDtypes, ", "));
  }
}

std::optional<int64_t> read_token_id(Fields& fields, const std::string& name, int64_t vocab_size,
                                     std::optional<int64_t> fallback) {
  if (!fields.has(name)) return fallback;
  const json value = fields.take(name);
  if (value.is_null()) return {};
  return Fields::integer(name, value, 0, vocab_size - 1);
}

void read_token_ids(Fields& fields, LlamaConfig& config) {
  config.bos_token_id = read_token_id(fields, "bos_token_id", config.vocab_size, config.bos_token_id);
  config.pad_token_id = read_token_id(fields, "pad_token_id", config.vocab_size, config.pad_token_id);
  if (!fields.has("eos_token_id")) return;
  json value = fields.take("eos_token_id");
  config.eos_token_ids.clear();
  if (value.is_null()) return;
  if (!value.is_array()) value = json::array({value});
  for (const json& id : value)
    config.eos_token_ids.push_back(Fields::integer("eos_token_id", id, 0, config.vocab_size - 1));
}

void read_heads(Fields& fields, LlamaConfig& config) {
  const int64_t heads = fields.size("num_attention_heads", kMaxHeads);
  const int64_t kv_heads = fields.size("num_key_value_heads", kMaxHeads, heads);
  USER_CHECK(heads % kv_heads == 0,
             "config.json: num_attention_heads is {} and num_key_value_heads {}; the first must be a multiple of the "
             "second",
             heads, kv_heads);
  const int64_t head_dim = fields.size("head_dim", kMaxHeadDim, 0);
  USER_CHECK(
      head_dim != 0 || config.hidden_size % heads == 0,
      "config.json: hidden_size is {} and num_attention_heads {}; the first must be a multiple of the second, or "
      "head_dim be given",
      config.hidden_size, heads);
  config.num_attention_heads = heads;
  config.num_key_value_heads = kv_heads;
  config.head_dim = head_dim != 0 ? head_dim : config.hidden_size / heads;
  USER_CHECK(config.head_dim % 2 == 0, "config.json: head_dim is {}; the rotary embedding needs an even number",
             config.head_dim);
}

struct Preset {
  std::string_view name;
  int64_t layers, hidden, intermediate, heads, vocab;
};
// llama-10m speaks bytes: 256 and the special tokens, padded to a multiple of 64. The others have the shapes of the
// published measurements. All end a text with the first id after the bytes.
constexpr int64_t kEndOfText = 256;
constexpr std::array<Preset, 6> kPresets = {{
    {"llama-10m", 8, 320, 896, 5, 320},        // 10.4 M parameters
    {"llama-134m", 12, 768, 2048, 12, 32000},  // 134 M
    {"llama-2m", 4, 128, 320, 4, 4096},        // 1.8 M
    {"bench-134m", 12, 768, 2048, 12, 32000},  //
    {"bench-10m", 8, 256, 640, 8, 8192},       // 10.2 M
    {"bench-1.8m", 4, 128, 320, 4, 4096},      //
}};
}  // namespace

LlamaConfig LlamaConfig::from_json(std::string_view text) {
  Fields fields(parse_object(text));
  refuse_what_is_not_llama(fields);
  LlamaConfig config;
  config.vocab_size = fields.size("vocab_size", kMaxVocab);
  config.hidden_size = fields.size("hidden_size", kMaxWidth);
  config.intermediate_size = fields.size("intermediate_size", kMaxWidth);
  config.num_hidden_layers = fields.size("num_hidden_layers", kMaxLayers);
  read_heads(fields, config);
  config.max_position_embeddings =
      fields.size("max_position_embeddings", kMaxPositions, config.max_position_embeddings);
  config.rms_norm_eps = fields.number("rms_norm_eps", config.rms_norm_eps, 0.0, 1.0);
  config.initializer_range = fields.number("initializer_range", config.initializer_range, 0.0, 10.0);
  read_rope(fields, config);
  config.tie_word_embeddings = fields.flag("tie_word_embeddings");
  config.attention_bias = fields.flag("attention_bias");
  config.mlp_bias = fields.flag("mlp_bias");
  read_dtype(fields, config);
  read_token_ids(fields, config);
  config.other_fields = fields.rest();
  return config;
}

std::string LlamaConfig::to_json() const {
  json object = json::parse(other_fields);
  object["architectures"] = {"LlamaForCausalLM"};
  object["model_type"] = "llama";
  object["hidden_act"] = "silu";
  object["attention_dropout"] = 0.0;
  object["pretraining_tp"] = 1;
  object["rope_scaling"] = nullptr;
  object["vocab_size"] = vocab_size;
  object["hidden_size"] = hidden_size;
  object["intermediate_size"] = intermediate_size;
  object["num_hidden_layers"] = num_hidden_layers;
  object["num_attention_heads"] = num_attention_heads;
  object["num_key_value_heads"] = num_key_value_heads;
  object["head_dim"] = head_dim;
  object["max_position_embeddings"] = max_position_embeddings;
  object["rms_norm_eps"] = rms_norm_eps;
  object["rope_theta"] = rope_theta;
  object["initializer_range"] = initializer_range;
  object["tie_word_embeddings"] = tie_word_embeddings;
  object["attention_bias"] = attention_bias;
  object["mlp_bias"] = mlp_bias;
  object["dtype"] = dtype;
  object["bos_token_id"] = bos_token_id ? json(*bos_token_id) : json();
  object["pad_token_id"] = pad_token_id ? json(*pad_token_id) : json();
  object["eos_token_id"] = eos_token_ids.empty()       ? json()
                           : eos_token_ids.size() == 1 ? json(eos_token_ids.front())
                                                       : json(eos_token_ids);
  return object.dump(2) + "\n";
}

LlamaConfig LlamaConfig::preset(std::string_view name) {
  for (const Preset& preset : kPresets) {
    if (preset.name != name) continue;
    LlamaConfig config;
    config.vocab_size = preset.vocab;
    config.hidden_size = preset.hidden;
    config.intermediate_size = preset.intermediate;
    config.num_hidden_layers = preset.layers;
    config.num_attention_heads = config.num_key_value_heads = preset.heads;
    config.head_dim = preset.hidden / preset.heads;
    config.bos_token_id = kEndOfText;
    config.eos_token_ids = {kEndOfText};
    return config;
  }
  const auto near = nearest(name, preset_names());
  user_error("there is no preset \"{}\"{}; the presets are {}", name, near ? str(" (\"{}\"?)", *near) : "",
             fmt::join(preset_names(), ", "));
}

std::vector<std::string> LlamaConfig::preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

int64_t LlamaConfig::parameter_count() const {
  const int64_t query = num_attention_heads * head_dim;
  const int64_t key = num_key_value_heads * head_dim;
  int64_t layer = hidden_size * (2 * query + 2 * key) + 3 * hidden_size * intermediate_size + 2 * hidden_size;
  if (attention_bias) layer += query + 2 * key + hidden_size;
  if (mlp_bias) layer += 2 * intermediate_size + hidden_size;
  return num_hidden_layers * layer + (tie_word_embeddings ? 1 : 2) * vocab_size * hidden_size + hidden_size;
}

double LlamaConfig::train_flops_per_token(int64_t sequence_length) const {
  // Two operations a weight forward, four backward; the embedding is a look-up.
  const double matmul_weights = static_cast<double>(parameter_count()) -
                                (tie_word_embeddings ? 0.0 : static_cast<double>(vocab_size * hidden_size));
  const double attention = 6.0 * static_cast<double>(num_hidden_layers * num_attention_heads * head_dim) *
                           static_cast<double>(sequence_length);
  return 6.0 * matmul_weights + attention;
}

}  // namespace stepc::models
