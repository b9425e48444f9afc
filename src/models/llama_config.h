// The shape of a Llama model, as in a Hugging Face config.json. Reading is strict: a field whose meaning stepc does not
// implement is refused by name and value; fields that change nothing here are kept and written back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stepc::models {

struct LlamaConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  std::string dtype = "float32";  // of the saved weights: float32, bfloat16, float16 or float64
  std::optional<int64_t> bos_token_id = 1;
  std::optional<int64_t> pad_token_id;  // its embedding starts at zero and gets no gradient
  std::vector<int64_t> eos_token_ids = {2};
  std::string other_fields = "{}";  // a JSON object

  // Text of a config.json; throws UserError that names the field and the value.
  static LlamaConfig from_json(std::string_view text);
  [[nodiscard]] std::string to_json() const;

  // A model by name ("llama-10m"); throws UserError with the nearest name.
  static LlamaConfig preset(std::string_view name);
  static std::vector<std::string> preset_names();

  [[nodiscard]] int64_t parameter_count() const;
  // Floating-point operations of forward and backward for one token of a sequence, causal attention counted once.
  [[nodiscard]] double train_flops_per_token(int64_t sequence_length) const;

  bool operator==(const LlamaConfig&) const = default;
};

}  // namespace stepc::models
