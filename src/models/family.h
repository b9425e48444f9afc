// A family of decoders: what its model_type implies, how its config.json spells the switches, and the names under which
// its weights are stored. Parameters live in memory as they lie in the file, so a round trip changes no bit; a module
// that a family has no name for does not exist in it.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "models/config_fields.h"
#include "models/decoder_config.h"

namespace stepc::models {

enum class LayerPart { kAttentionNorm, kAttention, kAttentionOutputNorm, kMlpNorm, kMlp, kMlpOutputNorm };

// Path segments; Llama's are the defaults.
struct WeightNames {
  std::string_view model = "model";
  std::string_view embedding = "embed_tokens";
  std::string_view position_embedding = "";
  std::string_view embedding_norm = "";
  std::string_view layers = "layers";
  std::string_view final_norm = "norm";
  std::string_view head = "lm_head";

  std::string_view attention_norm = "input_layernorm";
  std::string_view attention = "self_attn";
  std::string_view attention_output_norm = "";
  std::string_view mlp_norm = "post_attention_layernorm";
  std::string_view mlp = "mlp";
  std::string_view mlp_output_norm = "";

  std::string_view query = "q_proj", key = "k_proj", value = "v_proj";
  std::string_view query_key_value = "";  // one matrix in place of the three
  std::string_view query_norm = "", key_norm = "";
  std::string_view attention_output = "o_proj";

  std::string_view gate = "gate_proj", up = "up_proj";
  std::string_view gate_up = "";  // one matrix in place of the two
  std::string_view down = "down_proj";

  bool interleaved_query_key_value = false;  // (heads, 3, head_dim, hidden) instead of (3, heads, head_dim, hidden)
  bool transposed = false;                   // matrices of the layers are (in, out)
  std::vector<std::string_view> ignored = {"rotary_emb.inv_freq"};  // endings of what old files hold beside weights
  // Of a layer's parts in the file; it decides where large weights are cut into several files.
  std::vector<LayerPart> order = {LayerPart::kAttention,           LayerPart::kMlp,     LayerPart::kAttentionNorm,
                                  LayerPart::kAttentionOutputNorm, LayerPart::kMlpNorm, LayerPart::kMlpOutputNorm};

  [[nodiscard]] bool gated() const { return !gate.empty() || !gate_up.empty(); }
};

struct Family {
  std::string_view model_type;
  std::vector<std::string_view> architectures;  // the first is written
  DecoderConfig defaults;                       // of transformers, where a field is absent
  // The family's own fields, after vocab_size, token ids and tie_word_embeddings and before dtype.
  void (*fields)(ConfigFields&, DecoderConfig&);
  WeightNames names;
};

std::span<const Family> families();
// nullptr if there is none.
const Family* find_family(std::string_view model_type);
const Family& family_of(std::string_view model_type);

}  // namespace stepc::models
