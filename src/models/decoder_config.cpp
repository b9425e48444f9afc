#include "models/decoder_config.h"

#include <array>

#include "base/check.h"
#include "base/json.h"
#include "models/config_limits.h"
#include "models/family.h"

namespace stepc::models {
namespace {
using nlohmann::json;

const std::vector<std::string> kDtypes = {"float32", "bfloat16", "float16", "float64"};

const Family& read_family(const ConfigFields& fields) {
  const json model_type = fields.take("model_type");
  const Family* family = model_type.is_string() ? find_family(model_type.get<std::string>()) : nullptr;
  if (family == nullptr) {
    std::vector<std::string_view> known;
    for (const Family& each : families()) known.push_back(each.model_type);
    user_error("config.json: model_type is {}; stepc supports {}", shown(model_type), fmt::join(known, ", "));
  }
  json architecture = fields.take("architectures");
  if (architecture.is_array() && architecture.size() == 1) architecture = json(architecture[0]);
  bool known = architecture.is_null();
  for (const std::string_view name : family->architectures) known = known || architecture == name;
  USER_CHECK(known, "config.json: architectures is {}; stepc supports only \"{}\"", shown(architecture),
             family->architectures.front());
  USER_CHECK(fields.take("quantization_config").is_null(),
             "config.json: quantization_config is set; stepc trains weights that are not quantized");
  return *family;
}

// The fields of a family's config.json, both ways.
void exchange(ConfigFields& fields, const Family& family, DecoderConfig& config) {
  fields.size("vocab_size", config.vocab_size, kMaxVocab);
  family.fields(fields, config);
  fields.flag("tie_word_embeddings", config.tie_word_embeddings);
  fields.token("bos_token_id", config.bos_token_id, config.vocab_size);
  fields.token("pad_token_id", config.pad_token_id, config.vocab_size);
  fields.tokens("eos_token_id", config.eos_token_ids, config.vocab_size);
  for (const char* name : {"torch_dtype", "dtype"})
    if (fields.reads()) fields.choice(name, config.dtype, kDtypes);
  if (!fields.reads()) fields.put("dtype", config.dtype);
}

json described(const DecoderConfig& config) {
  ConfigFields fields;
  const Family& family = family_of(config.model_type);
  DecoderConfig copy = config;
  exchange(fields, family, copy);
  fields.put("model_type", family.model_type);
  fields.put("architectures", json::array({family.architectures.front()}));
  return fields.written();
}

void check_heads(const DecoderConfig& config) {
  USER_CHECK(config.num_attention_heads % config.num_key_value_heads == 0,
             "config.json: num_attention_heads is {} and num_key_value_heads {}; the first must be a multiple of the "
             "second",
             config.num_attention_heads, config.num_key_value_heads);
  if (config.positions != Positions::kRotary) return;
  const auto rotated = static_cast<int64_t>(static_cast<double>(config.head_dim) * config.rotary.fraction);
  USER_CHECK(rotated >= 2 && rotated % 2 == 0,
             "config.json: head_dim is {}{}; the rotary embedding needs an even number", config.head_dim,
             config.rotary.fraction == 1.0 ? "" : str(", of which {} are rotated", rotated));
  USER_CHECK(rotated > 2 || config.rotary.scaling != Rotary::Scaling::kDynamic,
             "config.json: head_dim is {}; dynamic rotary scaling needs more than 2 rotated numbers", config.head_dim);
}

struct Preset {
  std::string_view name, model_type;
  int64_t layers, hidden, intermediate, heads, key_value_heads, vocab;
};
// Those of 10 M speak bytes: 256 and the special tokens, padded to a multiple of 64. The others have the shapes of the
// published measurements. All end a text with the first id after the bytes.
constexpr int64_t kEndOfText = 256;
constexpr std::array<Preset, 9> kPresets = {{
    {"llama-10m", "llama", 8, 320, 896, 5, 5, 320},         // 10.4 M parameters
    {"llama-134m", "llama", 12, 768, 2048, 12, 12, 32000},  // 134 M
    {"llama-2m", "llama", 4, 128, 320, 4, 4, 4096},         // 1.8 M
    {"qwen3-10m", "qwen3", 8, 320, 960, 10, 5, 320},        // 10.0 M
    {"olmo2-10m", "olmo2", 8, 320, 896, 5, 5, 320},         // 10.4 M
    {"gpt2-10m", "gpt2", 8, 320, 1280, 5, 5, 320},          // 10.3 M
    {"bench-134m", "llama", 12, 768, 2048, 12, 12, 32000},  //
    {"bench-10m", "llama", 8, 256, 640, 8, 8, 8192},        // 10.2 M
    {"bench-1.8m", "llama", 4, 128, 320, 4, 4, 4096},       //
}};
}  // namespace

DecoderConfig DecoderConfig::from_json(std::string_view text) {
  const json object = parse_json(text, "config.json");
  USER_CHECK(object.is_object(), "config.json is {}; expected an object", shown(object));
  ConfigFields fields(object);
  const Family& family = read_family(fields);
  DecoderConfig config = family.defaults;
  exchange(fields, family, config);
  check_heads(config);
  USER_CHECK(config.pad_token_id.value_or(0) < config.vocab_size,
             "config.json: pad_token_id is absent, for which {} has {}; expected an integer from 0 to {}, or null",
             config.model_type, *config.pad_token_id, config.vocab_size - 1);
  config.source = object.dump();
  return config;
}

std::string DecoderConfig::to_json() const {
  const json now = described(*this);
  if (source.empty()) return now.dump(2) + "\n";
  const json then = described(from_json(source));
  json object = json::parse(source);
  for (const auto& [name, value] : now.items())
    if (!then.contains(name) || then[name] != value) object[name] = value;
  if (object.contains("dtype")) object.erase("torch_dtype");
  return object.dump(2) + "\n";
}

bool DecoderConfig::operator==(const DecoderConfig& other) const { return described(*this) == described(other); }

std::vector<DecoderConfig::Difference> DecoderConfig::differences(const DecoderConfig& other) const {
  const json mine = described(*this), others = described(other);
  json all = mine;
  all.update(others);
  std::vector<Difference> found;
  for (const auto& [name, unused] : all.items()) {
    const json here = mine.value(name, json()), there = others.value(name, json());
    if (here != there) found.push_back({name, here.dump(), there.dump()});
  }
  return found;
}

DecoderConfig DecoderConfig::preset(std::string_view name) {
  for (const Preset& preset : kPresets) {
    if (preset.name != name) continue;
    DecoderConfig config = family_of(preset.model_type).defaults;
    config.vocab_size = preset.vocab;
    config.hidden_size = preset.hidden;
    config.intermediate_size = preset.intermediate;
    config.num_hidden_layers = preset.layers;
    config.num_attention_heads = preset.heads;
    config.num_key_value_heads = preset.key_value_heads;
    config.head_dim = preset.hidden / preset.heads;
    config.bos_token_id = kEndOfText;
    config.pad_token_id = {};
    config.sliding_window = {};
    config.eos_token_ids = {kEndOfText};
    return config;
  }
  const auto near = nearest(name, preset_names());
  user_error("there is no preset \"{}\"{}; the presets are {}", name, near ? str(" (\"{}\"?)", *near) : "",
             fmt::join(preset_names(), ", "));
}

std::vector<std::string> DecoderConfig::preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

bool DecoderConfig::slides(int64_t layer) const {
  return sliding_window && (sliding_layers.empty() || sliding_layers.at(static_cast<size_t>(layer)));
}

int64_t DecoderConfig::parameter_count() const {
  const WeightNames& names = family_of(model_type).names;
  const int64_t query = num_attention_heads * head_dim;
  const int64_t key = num_key_value_heads * head_dim;
  const int64_t norm_size = norm == Norm::kLayerBare ? 0 : norm == Norm::kLayer ? 2 * hidden_size : hidden_size;
  const int64_t inner = names.gated() ? 2 : 1;  // matrices up

  int64_t layer = hidden_size * (2 * query + 2 * key) + (inner + 1) * hidden_size * intermediate_size;
  for (const auto name : {names.attention_norm, names.attention_output_norm, names.mlp_norm, names.mlp_output_norm})
    if (!name.empty()) layer += norm_size;
  if (!names.query_norm.empty()) layer += norm_per_head ? 2 * head_dim : query + key;
  if (query_key_value_bias) layer += query + 2 * key;
  if (attention_output_bias) layer += hidden_size;
  if (mlp_bias) layer += inner * intermediate_size + hidden_size;

  int64_t outer = (tie_word_embeddings ? 1 : 2) * vocab_size * hidden_size + norm_size;
  if (!names.embedding_norm.empty()) outer += norm_size;
  if (positions == Positions::kLearned) outer += max_position_embeddings * hidden_size;
  return num_hidden_layers * layer + outer;
}

double DecoderConfig::train_flops_per_token(int64_t sequence_length) const {
  // Two operations a weight forward, four backward; the embeddings are look-ups.
  int64_t looked_up = tie_word_embeddings ? 0 : vocab_size * hidden_size;
  if (positions == Positions::kLearned) looked_up += max_position_embeddings * hidden_size;
  const auto matmul_weights = static_cast<double>(parameter_count() - looked_up);
  const double attention = 6.0 * static_cast<double>(num_hidden_layers * num_attention_heads * head_dim) *
                           static_cast<double>(sequence_length);
  return 6.0 * matmul_weights + attention;
}

}  // namespace stepc::models
