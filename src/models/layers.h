// The modules that all decoders are made of. Each opens the ModuleScope of its name, follows the arithmetic of
// transformers operation by operation, and keeps its parameters as they lie in the file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <torch/nn/module.h>

#include "models/decoder_config.h"

namespace stepc::models {

// In which sums, norms and losses of `dtype` are computed: float32, float64 for float64.
inline at::ScalarType wide_type(at::ScalarType dtype) { return at::promote_types(dtype, at::kFloat); }

// A low-rank addition to a matrix: x -> dropout(x) A^T B^T * scaling.
struct LowRank {
  int64_t rank = 8;
  double scaling = 2.0;  // alpha / rank, or alpha / sqrt(rank)
  double dropout = 0.0;
};

class Linear : public torch::nn::Module {
 public:
  struct Shape {
    int64_t in, out;
    bool bias = false;
    bool transposed = false;  // the weight is (in, out) instead of (out, in)
  };
  Linear(std::string_view name, Shape shape, at::TensorOptions options);
  at::Tensor forward(const at::Tensor& x);

  // Adds parameters "lora_A" (rank, in), drawn, and "lora_B" (out, rank), zero; of float32 at least.
  void adapt(const LowRank& low_rank, at::Generator generator);
  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const at::Tensor& weight() const { return weight_; }

 private:
  std::string name_;
  Shape shape_;
  LowRank low_rank_;
  at::Tensor weight_, bias_, a_, b_;  // undefined where there is none
};

class Embedding : public torch::nn::Module {
 public:
  // padding_row < 0: none
  Embedding(std::string_view name, int64_t rows, int64_t width, int64_t padding_row, at::TensorOptions options);
  at::Tensor forward(const at::Tensor& ids);
  [[nodiscard]] const at::Tensor& weight() const { return weight_; }

 private:
  std::string name_;
  int64_t padding_row_;
  at::Tensor weight_;
};

class Normalization : public torch::nn::Module {
 public:
  Normalization(std::string_view name, int64_t width, const DecoderConfig& config, at::TensorOptions options);
  at::Tensor forward(const at::Tensor& x);

 private:
  std::string name_;
  Norm kind_;
  double epsilon_;
  at::Tensor weight_, bias_;
};

class FeedForward : public torch::nn::Module {
 public:
  FeedForward(const DecoderConfig& config, at::TensorOptions options);
  at::Tensor forward(const at::Tensor& x);

 private:
  std::string name_;
  std::string activation_;
  std::shared_ptr<Linear> gate_, up_, gate_up_, down_;  // null where the family has none
};

}  // namespace stepc::models
