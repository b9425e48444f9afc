#include "models/decoder.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <torch/nn/modules/container/modulelist.h>

#include "base/check.h"
#include "base/module_scope.h"
#include "models/attention.h"
#include "models/family.h"
#include "models/layers.h"

namespace stepc::models {
namespace {
constexpr int64_t kIgnoredLabel = -100;
constexpr int64_t kNoPadding = -1;

class DecoderLayer : public torch::nn::Module {
 public:
  DecoderLayer(const DecoderConfig& config, int64_t index, at::TensorOptions options)
      : residual_after_norm_(config.residual_after_norm), dropout_(config.residual_dropout) {
    const WeightNames& names = family_of(config.model_type).names;
    scope_ = str("{}.{}", names.layers, index);
    const auto norm = [&](std::string_view name) -> std::shared_ptr<Normalization> {
      if (name.empty()) return nullptr;
      return register_module(std::string(name),
                             std::make_shared<Normalization>(name, config.hidden_size, config, options));
    };
    for (const LayerPart part : names.order) {
      switch (part) {
        case LayerPart::kAttentionNorm:
          attention_norm_ = norm(names.attention_norm);
          break;
        case LayerPart::kAttention:
          attention_ =
              register_module(std::string(names.attention), std::make_shared<Attention>(config, index, options));
          break;
        case LayerPart::kAttentionOutputNorm:
          attention_output_norm_ = norm(names.attention_output_norm);
          break;
        case LayerPart::kMlpNorm:
          mlp_norm_ = norm(names.mlp_norm);
          break;
        case LayerPart::kMlp:
          mlp_ = register_module(std::string(names.mlp), std::make_shared<FeedForward>(config, options));
          break;
        case LayerPart::kMlpOutputNorm:
          mlp_output_norm_ = norm(names.mlp_output_norm);
          break;
      }
    }
  }

  at::Tensor forward(const at::Tensor& x, const Places& places, LayerCache* cache) {
    const ModuleScope scope(scope_);
    const at::Tensor attention_input = attention_norm_ ? attention_norm_->forward(x) : x;
    const at::Tensor attended = joined(residual_after_norm_ ? attention_input : x,
                                       attention_->forward(attention_input, places, cache), attention_output_norm_);
    const at::Tensor mlp_input = mlp_norm_ ? mlp_norm_->forward(attended) : attended;
    return joined(residual_after_norm_ ? mlp_input : attended, mlp_->forward(mlp_input), mlp_output_norm_);
  }

 private:
  at::Tensor joined(const at::Tensor& residual, at::Tensor branch, const std::shared_ptr<Normalization>& norm) {
    if (norm) branch = norm->forward(branch);
    if (dropout_ > 0.0) branch = at::dropout(branch, dropout_, is_training());
    return residual + branch;
  }

  std::string scope_;
  bool residual_after_norm_;
  double dropout_;
  std::shared_ptr<Attention> attention_;
  std::shared_ptr<FeedForward> mlp_;
  std::shared_ptr<Normalization> attention_norm_, attention_output_norm_, mlp_norm_, mlp_output_norm_;  // may be null
};
}  // namespace

class DecoderBody : public torch::nn::Module {
 public:
  DecoderBody(const DecoderConfig& config, at::TensorOptions options)
      : config_(config), names_(family_of(config.model_type).names) {
    const int64_t width = config.hidden_size;
    const auto embedding = [&](std::string_view name, int64_t rows, int64_t padding) {
      return register_module(std::string(name), std::make_shared<Embedding>(name, rows, width, padding, options));
    };
    const auto norm = [&](std::string_view name) {
      return register_module(std::string(name), std::make_shared<Normalization>(name, width, config, options));
    };
    const int64_t padding = config.padding_row_is_frozen ? config.pad_token_id.value_or(kNoPadding) : kNoPadding;
    embedding_ = embedding(names_.embedding, config.vocab_size, padding);
    if (config.positions == Positions::kLearned)
      positions_ = embedding(names_.position_embedding, config.max_position_embeddings, kNoPadding);
    if (!names_.embedding_norm.empty()) embedding_norm_ = norm(names_.embedding_norm);
    const auto list = register_module(std::string(names_.layers), std::make_shared<torch::nn::ModuleListImpl>());
    for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
      layers_.push_back(std::make_shared<DecoderLayer>(config, i, options));
      list->push_back(layers_.back());
    }
    final_norm_ = norm(names_.final_norm);
  }

  // ids (batch, seq) -> (batch, seq, hidden). cache: null, or what is kept of the tokens before, to which these go.
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& documents, KeyValueCache* cache = nullptr) {
    const ModuleScope scope(names_.model);
    at::Tensor x = embedding_->forward(ids);
    if (config_.scaled_embedding) {
      const at::Tensor root = at::full({}, std::sqrt(static_cast<double>(config_.hidden_size)), x.options());
      x = x * root.detach();  // rounded to the dtype of x, as the models were trained
    }
    const Places here = places(config_, ids.size(1), cache ? cache->length() : 0, documents, x);
    if (positions_) x = x + positions_->forward(here.positions);
    if (embedding_norm_) x = embedding_norm_->forward(x);
    if (config_.embedding_dropout > 0.0) x = at::dropout(x, config_.embedding_dropout, is_training());
    if (cache) cache->layers.resize(layers_.size());
    for (size_t i = 0; i < layers_.size(); ++i) x = layers_[i]->forward(x, here, cache ? &cache->layers[i] : nullptr);
    return final_norm_->forward(x);
  }
  [[nodiscard]] const at::Tensor& embedding() const { return embedding_->weight(); }

 private:
  DecoderConfig config_;
  const WeightNames& names_;
  std::shared_ptr<Embedding> embedding_, positions_;  // positions_ null unless they are learned
  std::shared_ptr<Normalization> embedding_norm_, final_norm_;
  std::vector<std::shared_ptr<DecoderLayer>> layers_;
};

DecoderImpl::DecoderImpl(const DecoderConfig& config, at::TensorOptions options) : config_(config) {
  const WeightNames& names = family_of(config.model_type).names;
  body_ = register_module(std::string(names.model), std::make_shared<DecoderBody>(config, options));
  if (config.tie_word_embeddings) return;
  const Linear::Shape shape = {config.hidden_size, config.vocab_size};
  head_ = register_module(std::string(names.head), std::make_shared<Linear>(names.head, shape, options));
}

void DecoderImpl::check_ids(const at::Tensor& ids, int64_t past) const {
  USER_CHECK(ids.dim() == 2 && ids.scalar_type() == at::kLong && ids.numel() > 0,
             "token ids have {} dimensions and type {}; expected a non-empty int64 tensor (batch, seq)", ids.dim(),
             at::toString(ids.scalar_type()));
  USER_CHECK(config_.positions != Positions::kLearned || past + ids.size(1) <= config_.max_position_embeddings,
             "a sequence has {} tokens; the model has {} learned positions", past + ids.size(1),
             config_.max_position_embeddings);
}

at::Tensor DecoderImpl::forward(const at::Tensor& ids, const at::Tensor& documents) {
  return logits_of(hidden_of(ids, documents));
}

at::Tensor DecoderImpl::hidden_of(const at::Tensor& ids, const at::Tensor& documents) {
  check_ids(ids, 0);
  USER_CHECK(!documents.defined() || (documents.sizes() == ids.sizes() && documents.scalar_type() == at::kLong),
             "documents have shape ({}) and type {}; expected int64 ({}), as the token ids",
             fmt::join(documents.sizes(), ", "), at::toString(documents.scalar_type()), fmt::join(ids.sizes(), ", "));
  return body_->forward(ids, documents);
}

at::Tensor DecoderImpl::next_logits(const at::Tensor& ids, KeyValueCache& cache) {
  check_ids(ids, cache.length());
  return logits_of(body_->forward(ids, /*documents=*/{}, &cache).select(1, ids.size(1) - 1));
}

at::Tensor DecoderImpl::logits_at(const at::Tensor& ids, const at::Tensor& place) {
  const at::Tensor hidden = hidden_of(ids, {});
  return logits_of((hidden * place.to(hidden.scalar_type()).unsqueeze(2)).sum(1));
}

at::Tensor DecoderImpl::logits_of(const at::Tensor& hidden) {
  const ModuleScope scope(family_of(config_.model_type).names.head);
  at::Tensor weight = head_ ? head_->weight() : body_->embedding();
  if (config_.normalized_head)
    weight = weight / at::linalg_vector_norm(weight, 2.0, {1}, /*keepdim=*/true).clamp_min(1e-12);
  const at::Tensor logits = at::linear(hidden, weight);
  if (!config_.logit_softcap) return logits;
  return at::tanh(logits / *config_.logit_softcap) * *config_.logit_softcap;
}

at::Tensor DecoderImpl::loss(const at::Tensor& ids, const at::Tensor& labels, const at::Tensor& token_count,
                             const at::Tensor& documents) {
  const at::Tensor raw = forward(ids, documents);
  const at::Tensor logits = raw.to(wide_type(raw.scalar_type())).view({-1, config_.vocab_size});
  const auto reduction = token_count.defined() ? at::Reduction::Sum : at::Reduction::Mean;
  const at::Tensor total = at::cross_entropy_loss(logits, labels.reshape(-1), /*weight=*/{}, reduction, kIgnoredLabel);
  return token_count.defined() ? total / token_count : total;
}

double DecoderImpl::summed_loss(const at::Tensor& ids, const at::Tensor& labels, const at::Tensor& documents,
                                int64_t most_logits) {
  const at::NoGradGuard no_grad;
  const at::Tensor hidden = hidden_of(ids, documents).flatten(0, 1);  // (batch * seq, hidden)
  const at::Tensor flat = labels.reshape(-1);
  const int64_t rows = std::max<int64_t>(1, most_logits / config_.vocab_size);
  double sum = 0;
  for (int64_t first = 0; first < flat.numel(); first += rows) {
    const int64_t count = std::min(rows, flat.numel() - first);
    const at::Tensor raw = logits_of(hidden.narrow(0, first, count));
    const at::Tensor logits = raw.to(wide_type(raw.scalar_type()));
    sum +=
        at::cross_entropy_loss(logits, flat.narrow(0, first, count), /*weight=*/{}, at::Reduction::Sum, kIgnoredLabel)
            .item<double>();
  }
  return sum;
}

void DecoderImpl::initialize(uint64_t seed) {
  const at::NoGradGuard no_grad;
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (const auto& [name, parameter] : persistent_state()) {
    if (name.ends_with(".bias")) {
      parameter.zero_();
    } else if (parameter.dim() == 1) {
      parameter.fill_(config_.norm == Norm::kRmsPlusOne ? 0.0 : 1.0);
    } else {
      const at::Tensor wide = at::empty(parameter.sizes(), at::kFloat);
      parameter.copy_(wide.normal_(0.0, config_.initializer_range, generator));
    }
  }
  if (config_.pad_token_id && config_.padding_row_is_frozen)
    body_->embedding().select(0, *config_.pad_token_id).zero_();
}

NamedTensors DecoderImpl::persistent_state() const {
  NamedTensors state;
  for (const auto& item : named_parameters())
    if (!item.key().ends_with(".lora_A") && !item.key().ends_with(".lora_B"))
      state.emplace_back(item.key(), item.value());
  return state;
}

std::vector<size_t> DecoderImpl::places_in(const std::vector<WeightShape>& state) const {
  const WeightNames& names = family_of(config_.model_type).names;
  const std::string model_prefix = str("{}.", names.model);
  const std::string head = str("{}.weight", names.head);
  const bool bare = std::ranges::none_of(state, [&](const auto& item) { return item.name.starts_with(model_prefix); });
  std::map<std::string, size_t> given;
  for (size_t i = 0; i < state.size(); ++i) {
    const std::string& name = state[i].name;
    const bool ignored = std::ranges::any_of(names.ignored, [&](const auto& end) { return name.ends_with(end); });
    if (ignored || (config_.tie_word_embeddings && name == head)) continue;
    given[bare && name != head ? model_prefix + name : name] = i;
  }

  std::vector<size_t> places;
  for (const auto& [name, parameter] : persistent_state()) {
    const auto found = given.find(name);
    USER_CHECK(found != given.end(), "the weights lack {}, which the model's config asks for", name);
    const WeightShape& weight = state[found->second];
    USER_CHECK(parameter.sizes() == weight.shape, "{} has shape ({}) in the weights and ({}) by the config", name,
               fmt::join(weight.shape, ", "), fmt::join(parameter.sizes(), ", "));
    USER_CHECK(at::isFloatingType(weight.type), "{} has type {} in the weights; expected floating-point numbers", name,
               at::toString(weight.type));
    places.push_back(found->second);
    given.erase(found);
  }
  USER_CHECK(given.empty(), "the weights hold {}, which the model's config has no place for", given.begin()->first);
  return places;
}

void DecoderImpl::load_state(const NamedTensors& state) {
  std::vector<WeightShape> shapes;
  for (const auto& [name, tensor] : state) shapes.push_back({name, tensor.sizes().vec(), tensor.scalar_type()});
  const at::NoGradGuard no_grad;
  const std::vector<size_t> places = places_in(shapes);
  const NamedTensors own = persistent_state();
  for (size_t i = 0; i < own.size(); ++i) at::Tensor(own[i].second).copy_(state[places[i]].second);
}

std::vector<std::pair<std::string, std::shared_ptr<Linear>>> DecoderImpl::layer_matrices() const {
  std::vector<std::pair<std::string, std::shared_ptr<Linear>>> matrices;
  for (const auto& item : named_modules())
    if (auto linear = std::dynamic_pointer_cast<Linear>(item.value()); linear && linear != head_)
      matrices.emplace_back(item.key(), std::move(linear));
  return matrices;
}

at::Tensor count_tokens(const at::Tensor& labels) { return labels.ne(kIgnoredLabel).sum().clamp_min(1).to(at::kFloat); }

at::ScalarType scalar_type(const std::string& dtype) {
  if (dtype == "float32") return at::kFloat;
  if (dtype == "bfloat16") return at::kBFloat16;
  if (dtype == "float16") return at::kHalf;
  if (dtype == "float64") return at::kDouble;
  user_error("dtype is \"{}\"; expected float32, bfloat16, float16 or float64", dtype);
}

}  // namespace stepc::models
