// The table of families. A family that differs from another only in switches is one more row, and one more row of
// tests/parity/test_families.py (docs/models.md).
#include "base/check.h"
#include "models/config_limits.h"
#include "models/family.h"
#include "models/rotary_fields.h"

namespace stepc::models {
namespace {

void sizes(ConfigFields& f, DecoderConfig& c) {
  f.size("hidden_size", c.hidden_size, kMaxWidth);
  f.size("intermediate_size", c.intermediate_size, kMaxWidth);
  f.size("num_hidden_layers", c.num_hidden_layers, kMaxLayers);
  f.size("num_attention_heads", c.num_attention_heads, kMaxHeads);
  f.number("initializer_range", c.initializer_range, 0.0, 10.0);
}

// Without a number: as many as attention heads, and hidden_size shared among them.
void grouped_heads(ConfigFields& f, DecoderConfig& c) {
  const bool null = f.has("num_key_value_heads") && f.take("num_key_value_heads").is_null();
  if (null || c.num_key_value_heads == 0) c.num_key_value_heads = c.num_attention_heads;
  f.size("num_key_value_heads", c.num_key_value_heads, kMaxHeads);
  if (c.head_dim == 0 && c.hidden_size % c.num_attention_heads == 0) c.head_dim = c.hidden_size / c.num_attention_heads;
  USER_CHECK(c.head_dim != 0 || !f.take("head_dim").is_null(),
             "config.json: hidden_size is {} and num_attention_heads {}; the first must be a multiple of the second, "
             "or head_dim be given",
             c.hidden_size, c.num_attention_heads);
  f.size("head_dim", c.head_dim, kMaxHeadDim);
}

void plain_heads(DecoderConfig& c) {
  USER_CHECK(c.hidden_size % c.num_attention_heads == 0,
             "config.json: hidden_size is {} and the number of attention heads {}; the first must be a multiple of the "
             "second",
             c.hidden_size, c.num_attention_heads);
  c.num_key_value_heads = c.num_attention_heads;
  c.head_dim = c.hidden_size / c.num_attention_heads;
}

void rms_norm(ConfigFields& f, DecoderConfig& c) { f.number("rms_norm_eps", c.norm_eps, 0.0, 1.0); }

const std::vector<std::string> kActivations = {"silu", "gelu", "gelu_new", "gelu_pytorch_tanh"};

// What the descendants of Llama share.
void rotary_decoder(ConfigFields& f, DecoderConfig& c) {
  sizes(f, c);
  grouped_heads(f, c);
  f.size("max_position_embeddings", c.max_position_embeddings, kMaxPositions);
  f.choice("hidden_act", c.activation, kActivations);
  f.number("attention_dropout", c.attention_dropout, 0.0, kMaxDropout);
  rotary_fields(f, c.rotary);
}

void attention_bias(ConfigFields& f, DecoderConfig& c) {
  f.flag("attention_bias", c.query_key_value_bias);
  c.attention_output_bias = c.query_key_value_bias;
}

void llama(ConfigFields& f, DecoderConfig& c) {
  rotary_decoder(f, c);
  rms_norm(f, c);
  attention_bias(f, c);
  f.flag("mlp_bias", c.mlp_bias);
  f.only("pretraining_tp", 1);
}

void mistral(ConfigFields& f, DecoderConfig& c) {
  rotary_decoder(f, c);
  rms_norm(f, c);
  f.optional_size("sliding_window", c.sliding_window, kMaxPositions);
}

void qwen(ConfigFields& f, DecoderConfig& c) {
  rotary_decoder(f, c);
  rms_norm(f, c);
  bool slides = c.sliding_window.has_value() && !f.reads();
  f.flag("use_sliding_window", slides);
  f.optional_size("sliding_window", c.sliding_window, kMaxPositions);
  if (!f.reads()) return f.sliding_layers("layer_types", c.sliding_layers, c.num_hidden_layers);
  if (!slides) c.sliding_window.reset();
  int64_t first = 28;
  f.count("max_window_layers", first, kMaxLayers);
  c.sliding_layers.clear();
  for (int64_t i = 0; c.sliding_window && i < c.num_hidden_layers; ++i) c.sliding_layers.push_back(i >= first);
  f.sliding_layers("layer_types", c.sliding_layers, c.num_hidden_layers);
}

void qwen3(ConfigFields& f, DecoderConfig& c) {
  qwen(f, c);
  attention_bias(f, c);
}

void olmo(ConfigFields& f, DecoderConfig& c) {
  rotary_decoder(f, c);
  attention_bias(f, c);
  f.optional_number("clip_qkv", c.clip_qkv, 0.0, 1e9);
}

void olmo2(ConfigFields& f, DecoderConfig& c) {
  rotary_decoder(f, c);
  rms_norm(f, c);
  attention_bias(f, c);
}

void glm(ConfigFields& f, DecoderConfig& c) {
  rotary_decoder(f, c);
  rms_norm(f, c);
  f.flag("attention_bias", c.query_key_value_bias);
}

void gemma2(ConfigFields& f, DecoderConfig& c) {
  sizes(f, c);
  grouped_heads(f, c);
  f.size("max_position_embeddings", c.max_position_embeddings, kMaxPositions);
  f.choice("hidden_activation", c.activation, kActivations);
  f.number("attention_dropout", c.attention_dropout, 0.0, kMaxDropout);
  rotary_fields(f, c.rotary);
  rms_norm(f, c);
  attention_bias(f, c);
  f.optional_number("query_pre_attn_scalar", c.query_scalar, 1e-6, 1e9);
  f.optional_number("attn_logit_softcapping", c.attention_softcap, 1e-6, 1e9);
  f.optional_number("final_logit_softcapping", c.logit_softcap, 1e-6, 1e9);
  f.optional_size("sliding_window", c.sliding_window, kMaxPositions);
  if (f.reads() && c.sliding_layers.empty())
    for (int64_t i = 0; i < c.num_hidden_layers; ++i) c.sliding_layers.push_back(i % 2 == 0);
  f.sliding_layers("layer_types", c.sliding_layers, c.num_hidden_layers);
}

// Both sizes have one model_type; the code that comes with them takes the 7B's positions from
// max_position_embeddings, while the 13B, which has ALiBi, has model_max_length alone. The second generation has a
// vocabulary of its own and normalises the output matrix.
void baichuan(ConfigFields& f, DecoderConfig& c) {
  constexpr int64_t kSecondGenerationVocab = 125696;
  sizes(f, c);
  plain_heads(c);
  f.choice("hidden_act", c.activation, kActivations);
  rms_norm(f, c);
  if (f.reads()) {
    f.only("rope_scaling", nullptr);
    c.positions = f.has("max_position_embeddings") ? Positions::kRotary : Positions::kAlibi;
    c.normalized_head = c.vocab_size == kSecondGenerationVocab;
  }
  f.size(c.positions == Positions::kRotary ? "max_position_embeddings" : "model_max_length", c.max_position_embeddings,
         kMaxPositions);
}

void gpt2(ConfigFields& f, DecoderConfig& c) {
  f.size("n_embd", c.hidden_size, kMaxWidth);
  f.size("n_layer", c.num_hidden_layers, kMaxLayers);
  f.size("n_head", c.num_attention_heads, kMaxHeads);
  f.size("n_positions", c.max_position_embeddings, kMaxTablePositions);
  if (c.intermediate_size == 0) c.intermediate_size = 4 * c.hidden_size;
  f.size("n_inner", c.intermediate_size, kMaxWidth);
  plain_heads(c);
  f.choice("activation_function", c.activation, kActivations);
  f.number("layer_norm_epsilon", c.norm_eps, 0.0, 1.0);
  f.number("initializer_range", c.initializer_range, 0.0, 10.0);
  f.number("embd_pdrop", c.embedding_dropout, 0.0, kMaxDropout);
  f.number("attn_pdrop", c.attention_dropout, 0.0, kMaxDropout);
  f.number("resid_pdrop", c.residual_dropout, 0.0, kMaxDropout);
  f.only("scale_attn_weights", true);
  f.only("scale_attn_by_inverse_layer_idx", false);
  f.only("reorder_and_upcast_attn", false);
  f.only("add_cross_attention", false);
}

void bloom(ConfigFields& f, DecoderConfig& c) {
  const bool old_name = f.has("n_embed") && !f.has("hidden_size");
  f.size(old_name ? "n_embed" : "hidden_size", c.hidden_size, kMaxWidth);
  f.size("n_layer", c.num_hidden_layers, kMaxLayers);
  f.size("n_head", c.num_attention_heads, kMaxHeads);
  f.size("seq_length", c.max_position_embeddings, kMaxPositions);
  c.intermediate_size = 4 * c.hidden_size;
  plain_heads(c);
  f.number("layer_norm_epsilon", c.norm_eps, 0.0, 1.0);
  f.number("initializer_range", c.initializer_range, 0.0, 10.0);
  f.number("hidden_dropout", c.residual_dropout, 0.0, kMaxDropout);
  f.number("attention_dropout", c.attention_dropout, 0.0, kMaxDropout);
  f.flag("apply_residual_connection_post_layernorm", c.residual_after_norm);
  f.only("slow_but_exact", false);
}

std::vector<Family> make_families() {
  using Part = LayerPart;
  const std::vector<Part> as_they_run = {Part::kAttentionNorm, Part::kAttention, Part::kMlpNorm, Part::kMlp};
  const std::vector<Part> glm4_order = {Part::kAttention,           Part::kMlp,
                                        Part::kAttentionNorm,       Part::kMlpNorm,
                                        Part::kAttentionOutputNorm, Part::kMlpOutputNorm};
  constexpr int64_t kGlmPad = 151329;
  const DecoderConfig qwen_defaults = {.max_position_embeddings = 32768,
                                       .sliding_window = 4096,
                                       .query_key_value_bias = true,
                                       .bos_token_id = {},
                                       .eos_token_ids = {}};
  DecoderConfig qwen3_defaults = qwen_defaults;
  qwen3_defaults.head_dim = 128;
  qwen3_defaults.query_key_value_bias = false;
  const DecoderConfig glm_defaults = {.num_key_value_heads = 2,
                                      .head_dim = 128,
                                      .max_position_embeddings = 131072,
                                      .norm_eps = 0.00000015625,
                                      .rotary = {.fraction = 0.5, .interleaved = true},
                                      .query_key_value_bias = true,
                                      .bos_token_id = {},
                                      .pad_token_id = kGlmPad,
                                      .eos_token_ids = {kGlmPad, 151336, 151338}};
  const DecoderConfig olmo_defaults = {.norm = Norm::kLayerBare,
                                       .norm_eps = 1e-5,
                                       .rotary = {.wide = true},
                                       .bos_token_id = {},
                                       .pad_token_id = 1,
                                       .eos_token_ids = {50279}};
  DecoderConfig olmo2_defaults = olmo_defaults;
  olmo2_defaults.norm = Norm::kRmsWide;
  olmo2_defaults.norm_per_head = false;

  std::vector<Family> table;
  table.push_back({"llama", {"LlamaForCausalLM"}, {}, llama, {}});
  table.push_back({"mistral",
                   {"MistralForCausalLM"},
                   {.num_key_value_heads = 8, .max_position_embeddings = 131072, .sliding_window = 4096},
                   mistral,
                   {}});
  table.push_back({"qwen2", {"Qwen2ForCausalLM"}, qwen_defaults, qwen, {}});
  table.push_back(
      {"qwen3", {"Qwen3ForCausalLM"}, qwen3_defaults, qwen3, {.query_norm = "q_norm", .key_norm = "k_norm"}});
  table.push_back({"olmo", {"OlmoForCausalLM"}, olmo_defaults, olmo, {}});
  table.push_back({"olmo2",
                   {"Olmo2ForCausalLM"},
                   olmo2_defaults,
                   olmo2,
                   {.attention_norm = "",
                    .attention_output_norm = "post_attention_layernorm",
                    .mlp_norm = "",
                    .mlp_output_norm = "post_feedforward_layernorm",
                    .query_norm = "q_norm",
                    .key_norm = "k_norm"}});
  table.push_back({"glm", {"GlmForCausalLM"}, glm_defaults, glm, {.gate = "", .up = "", .gate_up = "gate_up_proj"}});
  table.push_back({"glm4",
                   {"Glm4ForCausalLM"},
                   glm_defaults,
                   glm,
                   {.attention_output_norm = "post_self_attn_layernorm",
                    .mlp_output_norm = "post_mlp_layernorm",
                    .gate = "",
                    .up = "",
                    .gate_up = "gate_up_proj",
                    .order = glm4_order}});
  table.push_back({"gemma2",
                   {"Gemma2ForCausalLM"},
                   {.num_key_value_heads = 4,
                    .head_dim = 256,
                    .max_position_embeddings = 8192,
                    .norm = Norm::kRmsPlusOne,
                    .activation = "gelu_pytorch_tanh",
                    .sliding_window = 4096,
                    .query_scalar = 256.0,
                    .attention_softcap = 50.0,
                    .logit_softcap = 30.0,
                    .tie_word_embeddings = true,
                    .scaled_embedding = true,
                    .bos_token_id = 2,
                    .pad_token_id = 0,
                    .eos_token_ids = {1}},
                   gemma2,
                   {.attention_output_norm = "post_attention_layernorm",
                    .mlp_norm = "pre_feedforward_layernorm",
                    .mlp_output_norm = "post_feedforward_layernorm"}});
  table.push_back({"baichuan",
                   {"BaichuanForCausalLM", "BaiChuanForCausalLM"},
                   {.max_position_embeddings = 4096, .pad_token_id = 0},
                   baichuan,
                   {.query_key_value = "W_pack"}});
  table.push_back({"gpt2",
                   {"GPT2LMHeadModel"},
                   {.max_position_embeddings = 1024,
                    .norm = Norm::kLayer,
                    .norm_eps = 1e-5,
                    .activation = "gelu_new",
                    .positions = Positions::kLearned,
                    .query_key_value_bias = true,
                    .attention_output_bias = true,
                    .mlp_bias = true,
                    .embedding_dropout = 0.1,
                    .attention_dropout = 0.1,
                    .residual_dropout = 0.1,
                    .tie_word_embeddings = true,
                    .padding_row_is_frozen = false,
                    .bos_token_id = 50256,
                    .eos_token_ids = {50256}},
                   gpt2,
                   {.model = "transformer",
                    .embedding = "wte",
                    .position_embedding = "wpe",
                    .layers = "h",
                    .final_norm = "ln_f",
                    .attention_norm = "ln_1",
                    .attention = "attn",
                    .mlp_norm = "ln_2",
                    .query_key_value = "c_attn",
                    .attention_output = "c_proj",
                    .gate = "",
                    .up = "c_fc",
                    .down = "c_proj",
                    .transposed = true,
                    .ignored = {".attn.bias", ".attn.masked_bias"},
                    .order = as_they_run}});
  table.push_back({"bloom",
                   {"BloomForCausalLM"},
                   {.norm = Norm::kLayer,
                    .norm_eps = 1e-5,
                    .activation = "gelu_new",
                    .positions = Positions::kAlibi,
                    .query_key_value_bias = true,
                    .attention_output_bias = true,
                    .mlp_bias = true,
                    .tie_word_embeddings = true,
                    .padding_row_is_frozen = false},
                   bloom,
                   {.model = "transformer",
                    .embedding = "word_embeddings",
                    .embedding_norm = "word_embeddings_layernorm",
                    .layers = "h",
                    .final_norm = "ln_f",
                    .attention = "self_attention",
                    .query_key_value = "query_key_value",
                    .attention_output = "dense",
                    .gate = "",
                    .up = "dense_h_to_4h",
                    .down = "dense_4h_to_h",
                    .interleaved_query_key_value = true,
                    .order = as_they_run}});
  for (Family& family : table) family.defaults.model_type = family.model_type;
  return table;
}
}  // namespace

std::span<const Family> families() {
  static const std::vector<Family> table = make_families();
  return table;
}

const Family* find_family(std::string_view model_type) {
  for (const Family& family : families())
    if (family.model_type == model_type) return &family;
  return nullptr;
}

const Family& family_of(std::string_view model_type) {
  const Family* family = find_family(model_type);
  INTERNAL_CHECK(family != nullptr, "model_type {}", model_type);
  return *family;
}

}  // namespace stepc::models
