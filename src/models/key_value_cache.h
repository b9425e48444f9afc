// The keys and values of a text that a decoder has read: the tokens after it are computed alone.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <torch/torch.h>

namespace stepc::models {

class LayerCache {
 public:
  // Puts keys and values, both (batch, kv_heads, new, head_dim), behind those that are here, and gives all.
  std::pair<at::Tensor, at::Tensor> extend(const at::Tensor& keys, const at::Tensor& values);
  [[nodiscard]] int64_t length() const { return length_; }

 private:
  at::Tensor keys_, values_;  // (batch, kv_heads, room, head_dim), of which the first length_ are filled
  int64_t length_ = 0;
};

struct KeyValueCache {
  std::vector<LayerCache> layers;  // empty until the first text

  // Tokens read.
  [[nodiscard]] int64_t length() const { return layers.empty() ? 0 : layers.front().length(); }
};

}  // namespace stepc::models
