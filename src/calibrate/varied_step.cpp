#include "calibrate/varied_step.h"

#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "aten/constants.h"
#include "base/text.h"
#include "capture/recorder.h"

namespace stepc {

namespace {

constexpr int kLayers = 2, kParameters = 12;

// What the program owns. Its calls change nothing that grows or shrinks from run to run.
class VariedStep {
 public:
  VariedStep(at::ScalarType dtype, int64_t side) : side_(side), dtype_(dtype) {
    ids_ = own(at::arange(side).remainder(side / 2));
    places_ = own(at::arange(side * side).remainder(side).view({side, side}));
    mask_ = own(at::arange(side * side).remainder(3).view({side, side}) > 0);
    gradient_ = matrix(0.3);
    for (int i = 0; i < kLayers; ++i) {
      tables_.push_back(matrix(0.1));
      for (int k = 0; k < 3; ++k) weights_.push_back(matrix(0.01));
      scales_.push_back(row(1));
      biases_.push_back(row(0.1));
    }
    for (int i = 0; i < kParameters; ++i)
      for (auto* all : {&parameters_, &gradients_, &means_, &squares_}) all->push_back(matrix(0.5));
    images_ = own(at::full({4, side / 4, 8, 8}, 0.5, dtype));
    channels_ = own(at::ones({side / 4}, dtype));
    running_mean_ = own(at::zeros({side / 4}, dtype));
    running_variance_ = own(at::ones({side / 4}, dtype));
  }

  const std::vector<at::Tensor>& tensors() const { return all_; }

  void run() {
    at::Tensor x = at::full({side_, side_}, 0.5, dtype_);
    for (int layer = 0; layer < kLayers; ++layer) {
      x = normalise(embed(x, layer), layer);
      x = attend(x, layer);
      x = activate(x);
      x = rearrange(x);
      index(x);
    }
    lose(x);
    for (int layer = 0; layer < kLayers; ++layer) see(layer);
    clip();
    const HostEventScope update("optimizer");
    for (int p = 0; p < kParameters; ++p) update_one(static_cast<size_t>(p));
  }

 private:
  // As Python hands a number to an operator of two tensors.
  static at::Tensor number(double value) { return tensor_of(WrappedNumber{value}); }
  at::Tensor own(at::Tensor tensor) { return all_.emplace_back(std::move(tensor)); }
  at::Tensor matrix(double value) { return own(at::full({side_, side_}, value, dtype_)); }
  at::Tensor row(double value) { return own(at::full({side_}, value, dtype_)); }
  const at::Tensor& weight(int layer, int which) const { return weights_[static_cast<size_t>(layer * 3 + which)]; }

  at::Tensor embed(const at::Tensor& x, int layer) {
    const at::Tensor rows = at::embedding(tables_[static_cast<size_t>(layer)], ids_);
    (void)at::embedding_dense_backward(gradient_, ids_, side_, -1, false);
    return at::add(at::add(rows, x), number(1));
  }

  at::Tensor normalise(const at::Tensor& x, int layer) {
    const at::Tensor &scale = scales_[static_cast<size_t>(layer)], &bias = biases_[static_cast<size_t>(layer)];
    const auto [normal, mean, deviation] = at::native_layer_norm(x, {side_}, scale, bias, 1e-5);
    (void)at::native_layer_norm_backward(gradient_, x, {side_}, mean, deviation, scale, bias, {true, true, true});
    const at::Tensor size = at::rsqrt(at::add(at::mean(at::pow(normal, 2), {-1}, true), number(1e-6)));
    const auto [variance, middle] = at::var_mean(x, std::vector<int64_t>{1}, true, true);
    (void)at::sub(x, middle);
    (void)at::linalg_vector_norm(x);
    return at::mul(at::mul(normal, size), scale);
  }

  at::Tensor attend(const at::Tensor& x, int layer) {
    const int64_t heads = 4, width = side_ / heads;
    const at::Tensor &scale = scales_[static_cast<size_t>(layer)], &bias = biases_[static_cast<size_t>(layer)];
    const auto split = [&](const at::Tensor& all) {
      return at::clone(all.view({side_, heads, width}).transpose(0, 1), at::MemoryFormat::Contiguous);
    };
    const at::Tensor query = split(at::mm(x, weight(layer, 0).t()));
    const at::Tensor key = split(at::addmm(bias, x, weight(layer, 1).t()));
    const at::Tensor scores = at::mul(at::bmm(query, key.transpose(1, 2)), number(0.125));
    const at::Tensor hidden = at::where(mask_, scores, at::scalar_tensor(-10.0, dtype_));
    const at::Tensor shares = at::_softmax(hidden, -1, false);
    (void)at::_safe_softmax(scores, -1);
    const at::Tensor kept = at::div(at::empty_like(shares).bernoulli_(0.9), number(0.9));
    const at::Tensor mixed = at::bmm(at::mul(shares, kept), split(x));
    (void)at::_softmax_backward_data(shares, shares, -1, shares.scalar_type());
    (void)at::masked_fill(scores, mask_, 0.0);
    const at::Tensor joined = at::clone(mixed.transpose(0, 1), at::MemoryFormat::Contiguous).view({side_, side_});
    const at::Tensor out = at::mm(joined, weight(layer, 2).t());
    (void)at::mm(gradient_.t(), joined);
    (void)at::mm(gradient_, weight(layer, 2));
    (void)at::sum(gradient_, {0}, true);
    return at::add(at::mul(out, scale), x);
  }

  at::Tensor activate(const at::Tensor& x) {
    const at::Tensor smooth = at::gelu(x), gate = at::silu(x), share = at::sigmoid(x), bent = at::tanh(x);
    (void)at::gelu(x, "tanh");
    (void)at::relu(x);
    (void)at::gelu_backward(gradient_, x);
    (void)at::gelu_backward(gradient_, x, "tanh");
    (void)at::silu_backward(gradient_, x);
    (void)at::sigmoid_backward(gradient_, share);
    (void)at::tanh_backward(gradient_, bent);
    (void)at::threshold_backward(gradient_, x, 0);
    (void)at::exp(bent);
    (void)at::log(share);
    (void)at::sin(x);
    (void)at::cos(x);
    (void)at::neg(x);
    (void)at::abs(x);
    (void)at::sqrt(share);
    (void)at::pow(x, 3);
    (void)at::sub(x, bent);
    (void)at::rsub(x, 1);
    (void)at::div(x, share);
    (void)at::div(x, number(2));
    (void)at::mul(x, number(2));
    (void)at::_ops::mul_Scalar::call(x, 2.0);
    (void)at::_ops::div_Scalar::call(x, 2.0);
    (void)at::clamp(x, -1, 1);
    (void)at::maximum(x, bent);
    (void)at::reciprocal(share);
    (void)at::addcmul(x, x, bent);
    at::Tensor sum = at::add(smooth, gate);
    sum.add_(bent);
    sum.mul_(share);
    sum.div_(share);
    return at::mul(sum, number(0.5));
  }

  at::Tensor rearrange(const at::Tensor& x) {
    const at::ScalarType other = dtype_ == at::kFloat ? at::kBFloat16 : at::kFloat;
    const at::Tensor both = at::cat({x, gradient_}, 1);
    (void)at::stack({x, gradient_});
    (void)at::constant_pad_nd(x, {1, 1}, 0);
    (void)at::slice_backward(x, both.sizes(), 1, 0, side_, 1);
    (void)at::select_backward(x.select(0, 0), x.sizes(), 0, 0);
    (void)at::_to_copy(at::_to_copy(x, other), dtype_);
    (void)at::_to_copy(ids_, dtype_);
    (void)at::clone(x);
    (void)at::clone(x.t(), at::MemoryFormat::Contiguous);
    (void)at::zeros_like(x);
    (void)at::ones_like(x);
    (void)at::full_like(x, 0.5);
    (void)at::zeros({side_, side_}, dtype_);
    (void)at::ones({side_}, dtype_);
    (void)at::arange(side_);
    (void)at::arange(0, side_);
    at::Tensor copied = at::empty_like(x);
    copied.copy_(x);
    copied.fill_(0.5);
    copied.zero_();
    return both.slice(1, 0, side_).contiguous();
  }

  void index(const at::Tensor& x) {
    (void)at::index(x, {ids_});
    (void)at::index_select(x, 0, ids_);
    (void)at::gather(x, 1, places_);
    (void)at::scatter(x, 1, places_, x);
    (void)at::index_put(x, {ids_}, x, true);
    at::Tensor sums = at::zeros_like(x);
    sums.scatter_add_(1, places_, x);
    (void)at::sum(x);
    (void)at::sum(x, {-1}, true);
    (void)at::mean(x);
    (void)at::amax(x, {-1}, true);
    (void)at::argmax(x, -1);
    (void)at::cumsum(x, -1);
    const at::Tensor above = at::gt(x, 0.1);
    (void)at::logical_and(above, mask_);
    (void)at::bitwise_and(at::lt(x, gradient_), mask_);
    (void)at::logical_not(above);
    (void)at::eq(ids_, 0);
    (void)at::ne(ids_, 1);
    (void)at::all(above);
    (void)at::any(above);
  }

  void lose(const at::Tensor& x) {
    const at::Tensor logs = at::_log_softmax(x, 1, false);
    const auto [loss, weight] = at::nll_loss_forward(logs, ids_, {}, at::Reduction::Mean, -100);
    const at::Tensor back = at::nll_loss_backward(loss, logs, ids_, {}, at::Reduction::Mean, -100, weight);
    (void)at::_log_softmax_backward_data(back, logs, 1, logs.scalar_type());
    const at::Tensor error = at::mse_loss(x, gradient_);
    (void)at::mse_loss_backward(error, x, gradient_, at::Reduction::Mean);
  }

  void see(int layer) {
    const int64_t groups = 2, pixels = 64, images = images_.size(0), channels = images_.size(1);
    const auto [normal, mean, deviation] =
        at::native_batch_norm(images_, channels_, channels_, running_mean_, running_variance_, true, 0.1, 1e-5);
    (void)at::native_batch_norm_backward(normal, images_, channels_, running_mean_, running_variance_, mean, deviation,
                                         true, 1e-5, {true, true, true});
    const auto [grouped, means, deviations] =
        at::native_group_norm(images_, channels_, channels_, images, channels, pixels, groups, 1e-5);
    (void)at::native_group_norm_backward(grouped, images_, means, deviations, channels_, images, channels, pixels,
                                         groups, {true, true, true});
    const auto [largest, where] = at::max_pool2d_with_indices(normal, {3, 3}, {2, 2}, {1, 1}, {1, 1}, false);
    (void)at::max_pool2d_with_indices_backward(largest, normal, {3, 3}, {2, 2}, {1, 1}, {1, 1}, false, where);
    (void)at::_adaptive_avg_pool2d(normal, {1, 1});
    (void)at::upsample_nearest2d(largest, {8, 8});
    (void)at::upsample_nearest2d_backward(normal, {8, 8}, largest.sizes());
    (void)at::mean(normal, {2, 3});
    (void)at::mul(normal, scales_[static_cast<size_t>(layer)].slice(0, 0, channels).view({1, channels, 1, 1}));
  }

  void clip() {
    const std::vector<at::Tensor> norms = at::_foreach_norm(gradients_, 2);
    const at::Tensor whole = at::linalg_vector_norm(at::stack(norms));
    const at::Tensor share = at::clamp(at::div(number(1), at::add(whole, number(1e-6))), {}, 1.0);
    at::_foreach_mul_(gradients_, share);
  }

  void update_one(size_t p) {
    parameters_[p].mul_(number(1));
    means_[p].lerp_(gradients_[p], 0.1);
    squares_[p].mul_(number(0.999));
    squares_[p].addcmul_(gradients_[p], gradients_[p], 0.001);
    const at::Tensor deviation = at::div(at::sqrt(squares_[p]), number(0.9)).add_(number(1e-8));
    parameters_[p].addcdiv_(means_[p], deviation, -1e-9);
  }

  int64_t side_;
  at::ScalarType dtype_;
  std::vector<at::Tensor> all_;
  at::Tensor ids_, places_, mask_, gradient_, images_, channels_, running_mean_, running_variance_;
  std::vector<at::Tensor> tables_, weights_, scales_, biases_, parameters_, gradients_, means_, squares_;
};

}  // namespace

Measured varied_calls(at::ScalarType dtype, int64_t side, int threads) {
  VariedStep step(dtype, side);
  return {step.tensors(), [&] { step.run(); }, threads};
}

std::string varied_ops(const std::string& dtype, int64_t side) {
  const std::string matrix = str("{}[{}, {}]", dtype, side, side);
  std::string graph, returned;
  int next = 0, group = 0;
  const auto input = [&](const std::string& type, const std::string& owner) {
    graph += str("input %{0}: {1} = {2} \"{0}\"\n", next, type, owner);
    return next++;
  };
  const auto add = [&](const std::string& type, const std::string& what, bool generated) {
    graph += str("%{}: {} = {} | forward \"\"", next, type, what);
    graph += generated ? str(" group {}\n", group++) : "\n";
    return next++;
  };
  const auto give = [&](int tensor) { returned += str("return %{}\n", tensor); };
  int x = input(matrix, "batch");
  const int other = input(matrix, "batch"), ids = input(str("i64[{}]", side), "batch");
  for (const char* one : {"exp", "neg", "tanh", "sigmoid"}) {
    const int weight = input(matrix, "parameter");
    for (const bool generated : {true, false}) {
      const int y = add(matrix, str("{}(%{})", one, x), generated);
      const int z = add(matrix, str("mul(%{}, %{})", y, other), generated);
      give(add(str("{}[{}]", dtype, side), str("sum(%{}) {{dims=[1], keepdim=false}}", z), generated));
      const int turned = add(matrix, str("transpose(%{}) {{permutation=[1, 0]}}", z), false);
      const int copied =
          add(str("{}[{}]", dtype, side * side), str("reshape(%{}) {{shape=[{}]}}", turned, side * side), false);
      give(add(str("{}[{}]", dtype, 2 * side * side), str("concat(%{0}, %{0}) {{dim=0}}", copied), false));
      x = add(matrix, str("matmul(%{}, %{}) {{transpose_a=false, transpose_b={}}}", z, weight, generated), false);
      x = add(matrix, str("add(%{}, %{})", x, z), generated);
      x = add(matrix, str("div(%{}, %{})", x, other), generated);
      if (generated) continue;
      const int taken = add(matrix, str("take(%{}, %{}) {{dim=0}}", x, ids), false);
      const int zeros = add(matrix, str("full() {{shape=[{}, {}], dtype={}, value=0}}", side, side, dtype), false);
      give(add(matrix, str("put_add(%{}, %{}, %{}) {{dim=0}}", zeros, ids, taken), false));
      const int half =
          add(str("{}[{}, {}]", dtype, side, side / 2),
              str("slice(%{}) {{starts=[0, 0], shape=[{}, {}], steps=[1, 1]}}", taken, side, side / 2), false);
      give(add(matrix, str("update_slice(%{}, %{}) {{starts=[0, 0], steps=[1, 1]}}", y, half), false));
      give(add(str("{}[{}, {}]", dtype, side, side + 2), str("pad(%{}) {{low=[0, 1], high=[0, 1]}}", y), false));
    }
  }
  give(x);
  return graph + returned;
}

}  // namespace stepc
