// The shape of a decoder, as in a Hugging Face config.json: sizes, and the switches in which the families differ. What
// model_type means is one row of models/families.cpp. Reading is strict: a field whose meaning stepc does not implement
// is refused by name and value; fields that change nothing here are kept and written back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stepc::models {

enum class Norm {
  kRms,         // weight * round(x / rms(x))
  kRmsWide,     // round(weight * x / rms(x)): the product in float32
  kRmsPlusOne,  // round((1 + weight) * x / rms(x))
  kLayer,       // layer normalisation with weight and bias
  kLayerBare,   // without
};

enum class Positions { kRotary, kAlibi, kLearned };

struct Rotary {
  enum class Scaling { kNone, kLinear, kDynamic, kLlama3 };

  double theta = 10000.0;
  double fraction = 1.0;     // of each head that is rotated, its first part
  bool interleaved = false;  // rotates pairs (0, 1), (2, 3), ... instead of (0, n/2), (1, n/2 + 1), ...
  bool wide = false;         // cosine and sine stay float32, and so does the rotation, whatever the model
  Scaling scaling = Scaling::kNone;
  double factor = 1.0;  // of all but kNone
  double low_freq_factor = 1.0, high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 8192;
};

struct DecoderConfig {
  std::string model_type = "llama";

  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 2048;

  Norm norm = Norm::kRms;
  double norm_eps = 1e-6;
  bool residual_after_norm = false;  // the residual stream continues from the normalised input
  std::string activation = "silu";   // a name of transformers: silu, gelu, gelu_new, gelu_pytorch_tanh

  Positions positions = Positions::kRotary;
  Rotary rotary = {};
  std::optional<int64_t> sliding_window = {};  // a token sees itself and this many less one before it
  std::vector<bool> sliding_layers = {};       // which layers have the window; empty: all

  bool query_key_value_bias = false;
  bool attention_output_bias = false;
  bool mlp_bias = false;
  bool norm_per_head = true;  // query and key norms of the families that have them: each head, or all at once
  std::optional<double> query_scalar = {};  // scores are divided by its root; without, by that of head_dim
  std::optional<double> clip_qkv = {};      // queries, keys and values are cut to [-clip, clip]
  std::optional<double> attention_softcap = {}, logit_softcap = {};  // cap * tanh(x / cap)
  double embedding_dropout = 0.0, attention_dropout = 0.0, residual_dropout = 0.0;

  bool tie_word_embeddings = false;
  bool scaled_embedding = false;      // times the root of hidden_size
  bool normalized_head = false;       // the rows of the output matrix have length one
  bool padding_row_is_frozen = true;  // the padding token's embedding starts at zero and gets no gradient

  double initializer_range = 0.02;
  std::string dtype = "float32";  // of the saved weights: float32, bfloat16, float16 or float64
  std::optional<int64_t> bos_token_id = 1;
  std::optional<int64_t> pad_token_id = {};
  std::vector<int64_t> eos_token_ids = {2};
  std::string source = {};  // the config.json that this was read from; empty for one made here

  // Text of a config.json; throws UserError that names the field and the value.
  static DecoderConfig from_json(std::string_view text);
  // The source with the fields that have changed since; a whole config.json where there is no source.
  [[nodiscard]] std::string to_json() const;

  // A model by name ("llama-10m"); throws UserError with the nearest name.
  static DecoderConfig preset(std::string_view name);
  static std::vector<std::string> preset_names();

  [[nodiscard]] bool slides(int64_t layer) const;
  [[nodiscard]] int64_t parameter_count() const;
  // Floating-point operations of forward and backward for one token of a sequence, causal attention counted once.
  [[nodiscard]] double train_flops_per_token(int64_t sequence_length) const;

  // Whether both describe the same model; fields that change nothing here do not count.
  bool operator==(const DecoderConfig& other) const;

  // A field of config.json and its values, as JSON; "null" where one has none.
  struct Difference {
    std::string field, mine, others;
  };
  // In which the two differ; empty where they are equal.
  [[nodiscard]] std::vector<Difference> differences(const DecoderConfig& other) const;
};

}  // namespace stepc::models
