// Llama for causal language modelling on torch::nn. Parameters carry the Hugging Face names; the arithmetic follows
// transformers operation by operation. A forward depends on its parameters and inputs alone (the rotary tables are
// computed in it), reads nothing back to the host, and opens a ModuleScope in each module.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "models/llama_config.h"

namespace stepc::models {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

class LlamaModel;
class Linear;

class LlamaForCausalLMImpl : public torch::nn::Module {
 public:
  // Weights are zero until initialize() or load_state().
  explicit LlamaForCausalLMImpl(const LlamaConfig& config, at::ScalarType dtype = at::kFloat);

  // ids: int64 (batch, seq) -> logits (batch, seq, vocab) in the dtype of the weights.
  at::Tensor forward(const at::Tensor& ids);

  // Cross-entropy in float32. labels: int64 (batch, seq), labels[b, s] is the token that follows ids[b, s], or -100 to
  // leave the position out. The first form is the mean over the positions that count; the second is their sum divided
  // by token_count (a scalar tensor), so that micro-batches add up to the mean over a whole batch.
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& labels);
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& labels, const at::Tensor& token_count);

  // Fresh weights: normal with the config's initializer_range, biases zero, norms one. The same seed gives the same
  // weights in every dtype, up to its rounding.
  void initialize(uint64_t seed);

  // What a checkpoint holds: every parameter once. Tied embeddings are "model.embed_tokens.weight" alone.
  [[nodiscard]] NamedTensors persistent_state() const;

  // Copies weights in, converting to the model's dtype; throws UserError on a missing, unknown or misshapen tensor and
  // then leaves the model as it was. Ignores "lm_head.weight" of tied models and the "rotary_emb.inv_freq" of old
  // files.
  void load_state(const NamedTensors& state);

  [[nodiscard]] const LlamaConfig& config() const { return config_; }

 private:
  LlamaConfig config_;
  std::shared_ptr<LlamaModel> model_;
  std::shared_ptr<Linear> lm_head_;  // null when the embeddings are tied
};
TORCH_MODULE(LlamaForCausalLM);

// "bfloat16" -> at::kBFloat16 for the names of LlamaConfig::dtype; throws UserError for others.
at::ScalarType scalar_type(const std::string& dtype);

}  // namespace stepc::models
