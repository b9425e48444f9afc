#include "models/layers.h"

#include <cmath>

#include <torch/csrc/autograd/custom_function.h>

#include "base/check.h"
#include "base/module_scope.h"
#include "models/family.h"

namespace stepc::models {
namespace {
at::Tensor activated(const at::Tensor& x, const std::string& name) {
  if (name == "silu") return at::silu(x);
  if (name == "gelu") return at::gelu(x);
  INTERNAL_CHECK(name == "gelu_new" || name == "gelu_pytorch_tanh", "{}", name);
  return at::gelu(x, "tanh");
}
}  // namespace

Linear::Linear(std::string_view name, Shape shape, at::TensorOptions options) : name_(name), shape_(shape) {
  const std::vector<int64_t> sizes =
      shape.transposed ? std::vector{shape.in, shape.out} : std::vector{shape.out, shape.in};
  weight_ = register_parameter("weight", at::zeros(sizes, options));
  if (shape.bias) bias_ = register_parameter("bias", at::zeros({shape.out}, options));
}

at::Tensor Linear::forward(const at::Tensor& x) {
  const ModuleScope scope(name_);
  const at::Tensor y = at::linear(x, shape_.transposed ? weight_.t() : weight_, bias_);
  if (!a_.defined()) return y;
  at::Tensor in = x.to(a_.scalar_type());
  if (low_rank_.dropout > 0.0) in = at::dropout(in, low_rank_.dropout, is_training());
  return (y + at::linear(at::linear(in, a_), b_) * low_rank_.scaling).to(y.scalar_type());
}

void Linear::adapt(const LowRank& low_rank, at::Generator generator) {
  INTERNAL_CHECK(!a_.defined(), "{} has an adapter already", name_);
  low_rank_ = low_rank;
  const double bound = 1.0 / std::sqrt(static_cast<double>(shape_.in));  // Kaiming uniform, as PEFT draws
  const at::Tensor drawn = at::empty({low_rank.rank, shape_.in}, at::kFloat).uniform_(-bound, bound, generator);
  const auto options = weight_.options().dtype(wide_type(weight_.scalar_type())).requires_grad(false);
  a_ = register_parameter("lora_A", drawn.to(options));
  b_ = register_parameter("lora_B", at::zeros({shape_.out, low_rank.rank}, options));
}

Embedding::Embedding(std::string_view name, int64_t rows, int64_t width, int64_t padding_row, at::TensorOptions options)
    : name_(name), padding_row_(padding_row) {
  weight_ = register_parameter("weight", at::zeros({rows, width}, options));
}

at::Tensor Embedding::forward(const at::Tensor& ids) {
  const ModuleScope scope(name_);
  return at::embedding(weight_, ids, padding_row_);
}

Normalization::Normalization(std::string_view name, int64_t width, const DecoderConfig& config,
                             at::TensorOptions options)
    : name_(name), kind_(config.norm), epsilon_(config.norm_eps) {
  if (kind_ != Norm::kLayerBare) weight_ = register_parameter("weight", at::ones({width}, options));
  if (kind_ == Norm::kLayer) bias_ = register_parameter("bias", at::zeros({width}, options));
}

at::Tensor Normalization::forward(const at::Tensor& x) {
  const ModuleScope scope(name_);
  if (kind_ == Norm::kLayer) return at::layer_norm(x, {x.size(-1)}, weight_, bias_, epsilon_);
  const at::Tensor wide = x.to(wide_type(x.scalar_type()));
  if (kind_ == Norm::kLayerBare)
    return at::layer_norm(wide, {x.size(-1)}, /*weight=*/{}, /*bias=*/{}, epsilon_).to(x.scalar_type());
  const at::Tensor variance = wide.pow(2).mean(-1, /*keepdim=*/true);
  const at::Tensor unit = wide * at::rsqrt(variance + epsilon_);
  if (kind_ == Norm::kRmsWide) return (weight_ * unit).to(x.scalar_type());
  if (kind_ == Norm::kRmsPlusOne) return (unit * (1.0 + weight_.to(wide.scalar_type()))).to(x.scalar_type());
  return weight_ * unit.to(x.scalar_type());
}

FeedForward::FeedForward(const DecoderConfig& config, at::TensorOptions options) : activation_(config.activation) {
  const WeightNames& names = family_of(config.model_type).names;
  name_ = names.mlp;
  const auto linear = [&](std::string_view name, int64_t in, int64_t out) -> std::shared_ptr<Linear> {
    if (name.empty()) return nullptr;
    return register_module(
        std::string(name),
        std::make_shared<Linear>(name, Linear::Shape{in, out, config.mlp_bias, names.transposed}, options));
  };
  gate_ = linear(names.gate, config.hidden_size, config.intermediate_size);
  gate_up_ = linear(names.gate_up, config.hidden_size, 2 * config.intermediate_size);
  up_ = linear(names.up, config.hidden_size, config.intermediate_size);
  down_ = linear(names.down, config.intermediate_size, config.hidden_size);
}

at::Tensor FeedForward::forward(const at::Tensor& x) {
  const ModuleScope scope(name_);
  if (gate_up_) {
    const std::vector<at::Tensor> halves = gate_up_->forward(x).chunk(2, -1);
    return down_->forward(halves[1] * activated(halves[0], activation_));
  }
  if (gate_) {
    const at::Tensor gate = activated(gate_->forward(x), activation_);
    return down_->forward(gate * up_->forward(x));
  }
  return down_->forward(activated(up_->forward(x), activation_));
}

}  // namespace stepc::models
