// Self-attention of a decoder, and what it knows about places: rotation, biases and masks, which are computed once in a
// forward and shared by all layers.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>

#include "models/key_value_cache.h"
#include "models/layers.h"

namespace stepc::models {

// Several documents may be packed into one row: `documents` (batch, seq) holds a number that changes from one to the
// next. A token then sees its own document alone, and positions count from that one's start. Undefined: each row is one
// document.
struct Places {
  at::Tensor positions;     // int64 (batch or 1, seq)
  at::Tensor cosine, sine;  // rotary: (batch or 1, 1, seq, rotated)
  // Attention masks, (batch or 1, heads or 1, seq, past + seq): true where a query sees a key, or what is added to the
  // score (ALiBi). Undefined where causality is all.
  at::Tensor mask, sliding_mask;
};
// hidden: what goes into the layers; gives dtype and device. past: tokens before these whose keys are kept; with them
// there are no documents.
Places places(const DecoderConfig& config, int64_t seq, int64_t past, const at::Tensor& documents,
              const at::Tensor& hidden);

class Attention : public torch::nn::Module {
 public:
  Attention(const DecoderConfig& config, int64_t layer, at::TensorOptions options);
  // x: (batch, seq, hidden). cache: what this layer keeps of the tokens before x, which gets those of x; null: nothing.
  at::Tensor forward(const at::Tensor& x, const Places& places, LayerCache* cache = nullptr);

 private:
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask, bool causal);
  at::Tensor attend_all(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask);
  // -> three of (batch, heads, seq, head_dim)
  std::vector<at::Tensor> query_key_value(const at::Tensor& x);

  std::string name_;
  DecoderConfig config_;
  bool slides_;
  bool interleaved_query_key_value_;
  double scale_;
  std::shared_ptr<Linear> query_, key_, value_, query_key_value_, output_;  // null where the family has none
  std::shared_ptr<Normalization> query_norm_, key_norm_;
};

}  // namespace stepc::models
