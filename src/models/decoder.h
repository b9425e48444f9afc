// A decoder for causal language modelling on torch::nn, of any family of models/families.cpp. Parameters carry the
// Hugging Face names; the arithmetic follows transformers operation by operation. A forward depends on its parameters
// and inputs alone (rotary tables and masks are computed in it), reads nothing back to the host, and opens a
// ModuleScope in each module.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "models/decoder_config.h"
#include "models/key_value_cache.h"

namespace stepc::models {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// What a weight is before it is read.
struct WeightShape {
  std::string name;
  std::vector<int64_t> shape;
  at::ScalarType type = at::kFloat;
};

class DecoderBody;
class Linear;

class DecoderImpl : public torch::nn::Module {
 public:
  // Weights are zero until initialize() or load_state(). options: dtype and device.
  explicit DecoderImpl(const DecoderConfig& config, at::TensorOptions options = at::kFloat);

  // ids: int64 (batch, seq) -> logits (batch, seq, vocab) in the dtype of the weights. documents: int64 (batch, seq), a
  // number that changes where a document ends and the next begins; attention and positions start anew there. Left
  // undefined, each row is one document. Padding goes to the right, with labels of -100: nothing looks at it.
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& documents = {});

  // ids: int64 (batch, seq), which follow the tokens that the cache holds and go into it -> logits (batch, vocab) of
  // the token after them. To continue a text, not to train.
  at::Tensor next_logits(const at::Tensor& ids, KeyValueCache& cache);
  // (batch, vocab), of the token after one of each row: `place` (batch, seq) is 1 there and 0 elsewhere.
  at::Tensor logits_at(const at::Tensor& ids, const at::Tensor& place);

  // Cross-entropy in float32, of float64 weights in float64. labels: int64 (batch, seq), labels[b, s] is the token that
  // follows ids[b, s], or -100 to leave the position out. Divided by token_count, a scalar tensor: the count_tokens()
  // of a whole global batch, so that its parts add up to its mean, however it is cut. Undefined: the count of these
  // labels.
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& labels, const at::Tensor& token_count = {},
                  const at::Tensor& documents = {});

  // The sum of the losses, for evaluation: logits of at most `most_logits` numbers are held at a time.
  double summed_loss(const at::Tensor& ids, const at::Tensor& labels, const at::Tensor& documents = {},
                     int64_t most_logits = int64_t{1} << 24);

  // Fresh weights: normal with the config's initializer_range, biases zero, norms neutral. The same seed gives the same
  // weights in every dtype, up to its rounding.
  void initialize(uint64_t seed);

  // What a checkpoint holds: every parameter once, adapters left out. Tied embeddings are the input embedding alone.
  [[nodiscard]] NamedTensors persistent_state() const;

  // Copies weights in, converting to the model's dtype; throws UserError on a missing, unknown or misshapen tensor and
  // then leaves the model as it was. Ignores the output matrix of tied models and the tables that old files hold; names
  // may lack the first segment ("transformer."), as in files of a bare model.
  void load_state(const NamedTensors& state);

  // The place in `state` of each weight of persistent_state(), in its order. Throws what load_state() would for weights
  // of these shapes. A model on the meta device takes no memory to ask.
  [[nodiscard]] std::vector<size_t> places_in(const std::vector<WeightShape>& state) const;

  // The matrices that low-rank adapters may go to, by path ("model.layers.0.self_attn.q_proj").
  [[nodiscard]] std::vector<std::pair<std::string, std::shared_ptr<Linear>>> layer_matrices() const;

  [[nodiscard]] const DecoderConfig& config() const { return config_; }

 private:
  void check_ids(const at::Tensor& ids, int64_t past) const;
  at::Tensor hidden_of(const at::Tensor& ids, const at::Tensor& documents);  // (batch, seq, hidden)
  at::Tensor logits_of(const at::Tensor& hidden);                            // (..., hidden) -> (..., vocab)
  // Of each parameter, the index of its weight in `state`.

  DecoderConfig config_;
  std::shared_ptr<DecoderBody> body_;
  std::shared_ptr<Linear> head_;  // null when the embeddings are tied
};
TORCH_MODULE(Decoder);

// How many labels count, at least 1, as a float32 scalar.
at::Tensor count_tokens(const at::Tensor& labels);

// Dropout is off while this lives.
class EvaluationScope {
 public:
  explicit EvaluationScope(Decoder model) : model_(std::move(model)), was_training_(model_->is_training()) {
    model_->eval();
  }
  ~EvaluationScope() { model_->train(was_training_); }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  Decoder model_;
  bool was_training_;
};

// "bfloat16" -> at::kBFloat16 for the names of DecoderConfig::dtype; throws UserError for others.
at::ScalarType scalar_type(const std::string& dtype);

}  // namespace stepc::models
