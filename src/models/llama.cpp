#include "models/llama.h"

#include <cmath>
#include <map>

#include "base/check.h"
#include "base/module_scope.h"

namespace stepc::models {
namespace {
constexpr int64_t kIgnoredLabel = -100;
constexpr int64_t kNoPadding = -1;

// Cosine and sine of the rotary embedding, (1, 1, seq, head_dim), computed in float32. They are made anew in each
// forward: 2 x seq x head_dim numbers cost nothing beside a layer, and no table has to be kept, cast or saved.
std::pair<at::Tensor, at::Tensor> rotary_tables(int64_t seq, const LlamaConfig& config, const at::Tensor& like) {
  const ModuleScope scope("rotary_emb");
  const auto options = like.options().dtype(at::kFloat).requires_grad(false);
  const at::Tensor exponent = at::arange(0, config.head_dim, 2, options) / config.head_dim;
  const at::Tensor inv_freq = at::pow(config.rope_theta, exponent).reciprocal();
  const at::Tensor freqs = at::arange(seq, options).unsqueeze(1) * inv_freq;  // (seq, head_dim / 2)
  const at::Tensor angles = at::cat({freqs, freqs}, -1).unsqueeze(0).unsqueeze(0);
  return {angles.cos().to(like.scalar_type()), angles.sin().to(like.scalar_type())};
}

at::Tensor rotate_half(const at::Tensor& x) {
  const int64_t half = x.size(-1) / 2;
  return at::cat({-x.slice(-1, half), x.slice(-1, 0, half)}, -1);
}

at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  return x * cos + rotate_half(x) * sin;
}
}  // namespace

class Linear : public torch::nn::Module {
 public:
  Linear(std::string name, int64_t in, int64_t out, bool bias, at::TensorOptions options) : scope_(std::move(name)) {
    weight_ = register_parameter("weight", at::zeros({out, in}, options));
    if (bias) bias_ = register_parameter("bias", at::zeros({out}, options));
  }
  at::Tensor forward(const at::Tensor& x) {
    const ModuleScope scope(scope_);
    return at::linear(x, weight_, bias_);
  }

 private:
  std::string scope_;
  at::Tensor weight_, bias_;
};

namespace {
class Embedding : public torch::nn::Module {
 public:
  Embedding(const LlamaConfig& config, at::TensorOptions options) : padding_(config.pad_token_id.value_or(kNoPadding)) {
    weight_ = register_parameter("weight", at::zeros({config.vocab_size, config.hidden_size}, options));
  }
  at::Tensor forward(const at::Tensor& ids) {
    const ModuleScope scope("embed_tokens");
    return at::embedding(weight_, ids, padding_);
  }
  [[nodiscard]] const at::Tensor& weight() const { return weight_; }

 private:
  int64_t padding_;
  at::Tensor weight_;
};

class RMSNorm : public torch::nn::Module {
 public:
  RMSNorm(std::string name, const LlamaConfig& config, at::TensorOptions options)
      : scope_(std::move(name)), epsilon_(config.rms_norm_eps) {
    weight_ = register_parameter("weight", at::ones({config.hidden_size}, options));
  }
  at::Tensor forward(const at::Tensor& x) {
    const ModuleScope scope(scope_);
    const at::Tensor wide = x.to(at::kFloat);
    const at::Tensor variance = wide.pow(2).mean(-1, /*keepdim=*/true);
    return weight_ * (wide * at::rsqrt(variance + epsilon_)).to(x.scalar_type());
  }

 private:
  std::string scope_;
  double epsilon_;
  at::Tensor weight_;
};

class Attention : public torch::nn::Module {
 public:
  Attention(const LlamaConfig& config, at::TensorOptions options)
      : head_dim_(config.head_dim), grouped_(config.num_key_value_heads != config.num_attention_heads) {
    const int64_t hidden = config.hidden_size;
    const int64_t query = config.num_attention_heads * head_dim_;
    const int64_t key = config.num_key_value_heads * head_dim_;
    const bool bias = config.attention_bias;
    q_proj_ = register_module("q_proj", std::make_shared<Linear>("q_proj", hidden, query, bias, options));
    k_proj_ = register_module("k_proj", std::make_shared<Linear>("k_proj", hidden, key, bias, options));
    v_proj_ = register_module("v_proj", std::make_shared<Linear>("v_proj", hidden, key, bias, options));
    o_proj_ = register_module("o_proj", std::make_shared<Linear>("o_proj", query, hidden, bias, options));
  }
  // x: (batch, seq, hidden)
  at::Tensor forward(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
    const ModuleScope scope("self_attn");
    const int64_t batch = x.size(0);
    const int64_t seq = x.size(1);
    const auto heads = [&](const at::Tensor& t) {  // -> (batch, heads, seq, head_dim)
      return t.view({batch, seq, -1, head_dim_}).transpose(1, 2);
    };
    at::Tensor q = heads(q_proj_->forward(x));
    at::Tensor k = heads(k_proj_->forward(x));
    const at::Tensor v = heads(v_proj_->forward(x));
    q = rotated(q, cos, sin);
    k = rotated(k, cos, sin);
    const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim_));
    const at::Tensor mixed = at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/{}, /*dropout_p=*/0.0,
                                                              /*is_causal=*/seq > 1, scale, /*enable_gqa=*/grouped_);
    return o_proj_->forward(mixed.transpose(1, 2).contiguous().view({batch, seq, -1}));
  }

 private:
  int64_t head_dim_;
  bool grouped_;  // several query heads share a key and value head
  std::shared_ptr<Linear> q_proj_, k_proj_, v_proj_, o_proj_;
};

class MLP : public torch::nn::Module {
 public:
  MLP(const LlamaConfig& config, at::TensorOptions options) {
    const int64_t hidden = config.hidden_size;
    const int64_t wide = config.intermediate_size;
    const bool bias = config.mlp_bias;
    gate_proj_ = register_module("gate_proj", std::make_shared<Linear>("gate_proj", hidden, wide, bias, options));
    up_proj_ = register_module("up_proj", std::make_shared<Linear>("up_proj", hidden, wide, bias, options));
    down_proj_ = register_module("down_proj", std::make_shared<Linear>("down_proj", wide, hidden, bias, options));
  }
  at::Tensor forward(const at::Tensor& x) {
    const ModuleScope scope("mlp");
    return down_proj_->forward(at::silu(gate_proj_->forward(x)) * up_proj_->forward(x));
  }

 private:
  std::shared_ptr<Linear> gate_proj_, up_proj_, down_proj_;
};

class DecoderLayer : public torch::nn::Module {
 public:
  DecoderLayer(int64_t index, const LlamaConfig& config, at::TensorOptions options) : scope_(str("layers.{}", index)) {
    self_attn_ = register_module("self_attn", std::make_shared<Attention>(config, options));
    mlp_ = register_module("mlp", std::make_shared<MLP>(config, options));
    input_layernorm_ =
        register_module("input_layernorm", std::make_shared<RMSNorm>("input_layernorm", config, options));
    post_attention_layernorm_ = register_module("post_attention_layernorm",
                                                std::make_shared<RMSNorm>("post_attention_layernorm", config, options));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
    const ModuleScope scope(scope_);
    const at::Tensor attended = x + self_attn_->forward(input_layernorm_->forward(x), cos, sin);
    return attended + mlp_->forward(post_attention_layernorm_->forward(attended));
  }

 private:
  std::string scope_;
  std::shared_ptr<Attention> self_attn_;
  std::shared_ptr<MLP> mlp_;
  std::shared_ptr<RMSNorm> input_layernorm_, post_attention_layernorm_;
};
}  // namespace

class LlamaModel : public torch::nn::Module {
 public:
  LlamaModel(const LlamaConfig& config, at::TensorOptions options) : config_(config) {
    embed_tokens_ = register_module("embed_tokens", std::make_shared<Embedding>(config, options));
    const auto list = register_module("layers", std::make_shared<torch::nn::ModuleListImpl>());
    for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
      layers_.push_back(std::make_shared<DecoderLayer>(i, config, options));
      list->push_back(layers_.back());
    }
    norm_ = register_module("norm", std::make_shared<RMSNorm>("norm", config, options));
  }
  // ids (batch, seq) -> (batch, seq, hidden)
  at::Tensor forward(const at::Tensor& ids) {
    const ModuleScope scope("model");
    at::Tensor x = embed_tokens_->forward(ids);
    const auto [cos, sin] = rotary_tables(ids.size(1), config_, x);
    for (const auto& layer : layers_) x = layer->forward(x, cos, sin);
    return norm_->forward(x);
  }
  [[nodiscard]] const at::Tensor& embedding() const { return embed_tokens_->weight(); }

 private:
  LlamaConfig config_;
  std::shared_ptr<Embedding> embed_tokens_;
  std::vector<std::shared_ptr<DecoderLayer>> layers_;
  std::shared_ptr<RMSNorm> norm_;
};

LlamaForCausalLMImpl::LlamaForCausalLMImpl(const LlamaConfig& config, at::ScalarType dtype) : config_(config) {
  const auto options = at::TensorOptions().dtype(dtype);
  model_ = register_module("model", std::make_shared<LlamaModel>(config, options));
  if (!config.tie_word_embeddings)
    lm_head_ = register_module(
        "lm_head", std::make_shared<Linear>("lm_head", config.hidden_size, config.vocab_size, false, options));
}

at::Tensor LlamaForCausalLMImpl::forward(const at::Tensor& ids) {
  USER_CHECK(ids.dim() == 2 && ids.scalar_type() == at::kLong && ids.numel() > 0,
             "token ids have {} dimensions and type {}; expected a non-empty int64 tensor (batch, seq)", ids.dim(),
             at::toString(ids.scalar_type()));
  const at::Tensor hidden = model_->forward(ids);
  if (lm_head_) return lm_head_->forward(hidden);
  const ModuleScope scope("lm_head");
  return at::linear(hidden, model_->embedding());
}

at::Tensor LlamaForCausalLMImpl::loss(const at::Tensor& ids, const at::Tensor& labels) {
  const at::Tensor logits = forward(ids).to(at::kFloat).view({-1, config_.vocab_size});
  return at::cross_entropy_loss(logits, labels.reshape(-1), /*weight=*/{}, at::Reduction::Mean, kIgnoredLabel);
}

at::Tensor LlamaForCausalLMImpl::loss(const at::Tensor& ids, const at::Tensor& labels, const at::Tensor& token_count) {
  const at::Tensor logits = forward(ids).to(at::kFloat).view({-1, config_.vocab_size});
  return at::cross_entropy_loss(logits, labels.reshape(-1), /*weight=*/{}, at::Reduction::Sum, kIgnoredLabel) /
         token_count;
}

void LlamaForCausalLMImpl::initialize(uint64_t seed) {
  const torch::NoGradGuard no_grad;
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (const auto& [name, parameter] : persistent_state()) {
    if (name.ends_with(".bias")) {
      parameter.zero_();
    } else if (parameter.dim() == 1) {
      parameter.fill_(1.0);
    } else {
      const at::Tensor wide = at::empty(parameter.sizes(), at::kFloat);
      parameter.copy_(wide.normal_(0.0, config_.initializer_range, generator));
    }
  }
  if (config_.pad_token_id) model_->embedding().select(0, *config_.pad_token_id).zero_();
}

NamedTensors LlamaForCausalLMImpl::persistent_state() const {
  NamedTensors state;
  for (const auto& item : named_parameters()) state.emplace_back(item.key(), item.value());
  return state;
}

void LlamaForCausalLMImpl::load_state(const NamedTensors& state) {
  std::map<std::string, at::Tensor> given(state.begin(), state.end());
  if (config_.tie_word_embeddings) given.erase("lm_head.weight");
  std::erase_if(given, [](const auto& item) { return item.first.ends_with("rotary_emb.inv_freq"); });

  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // to, from
  for (const auto& [name, parameter] : persistent_state()) {
    const auto found = given.find(name);
    USER_CHECK(found != given.end(), "the weights lack {}, which the model's config asks for", name);
    USER_CHECK(found->second.sizes() == parameter.sizes(), "{} has shape ({}) in the weights and ({}) by the config",
               name, fmt::join(found->second.sizes(), ", "), fmt::join(parameter.sizes(), ", "));
    USER_CHECK(found->second.is_floating_point(), "{} has type {} in the weights; expected floating-point numbers",
               name, at::toString(found->second.scalar_type()));
    copies.emplace_back(parameter, found->second);
    given.erase(found);
  }
  USER_CHECK(given.empty(), "the weights hold {}, which the model's config has no place for", given.begin()->first);

  const torch::NoGradGuard no_grad;
  for (const auto& [to, from] : copies) to.copy_(from);
}

at::ScalarType scalar_type(const std::string& dtype) {
  if (dtype == "float32") return at::kFloat;
  if (dtype == "bfloat16") return at::kBFloat16;
  if (dtype == "float16") return at::kHalf;
  if (dtype == "float64") return at::kDouble;
  user_error("dtype is \"{}\"; expected float32, bfloat16, float16 or float64", dtype);
}

}  // namespace stepc::models
