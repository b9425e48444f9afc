#include "runtime/blocked_loss.h"

#include <ATen/Parallel.h>

#include "aten/constants.h"
#include "blocked/linear_cross_entropy.h"
#include "ir/alignment.h"
#include "runtime/blocked_operands.h"

namespace stepc {

namespace {
using at::Tensor;

// The call on operands as the kernel reads them. Which gradients are wanted: see ops/loss.cpp.
struct BoundLoss {
  blocked::LinearCrossEntropy call;
  Tensor hidden, weight, targets, gradient, sum_gradient;
  bool wants_hidden = false, wants_weight = false;
  at::ScalarType weight_gradient_type = at::kFloat;
  uint64_t copied_bytes = 0;  // of operands that did not lie as the kernel reads them

  Tensor dense(const Tensor& x) {
    if (x.is_contiguous()) return x;
    copied_bytes += aligned(x.nbytes());
    return x.contiguous();
  }
  Tensor dense_rows(const Tensor& x) { return x.stride(1) == 1 && x.stride(0) >= x.size(1) ? x : dense(x); }
};

std::optional<BoundLoss> bind(const Node& node, const std::vector<Tensor>& x) {
  const std::optional<blocked::Number> type = number_of(x[0].scalar_type());
  if (!type.has_value()) return std::nullopt;
  BoundLoss bound;
  bound.hidden = bound.dense_rows(x[0]);
  bound.weight = bound.dense_rows(x[1]);
  bound.targets = bound.dense(x[2]);
  if (x.size() > 3) bound.gradient = bound.dense(x[3]);
  if (x.size() > 4) bound.sum_gradient = bound.dense(x[4]);
  bound.wants_hidden = x.size() > 3;
  bound.wants_weight = x.size() > 3 && !node.attrs.get<bool>("frozen");
  bound.weight_gradient_type = scalar_type_of(node.attrs.get<DType>("gradient_dtype"));

  blocked::LinearCrossEntropy& call = bound.call;
  call.type = *type;
  call.tokens = bound.hidden.size(0);
  call.width = bound.hidden.size(1);
  call.classes = bound.weight.size(0);
  call.hidden_stride = bound.hidden.stride(0);
  call.weight_stride = bound.weight.stride(0);
  call.hidden_gradient_stride = call.width;
  call.ignore_index = node.attrs.get<int64_t>("ignore_index");
  const std::optional<blocked::Number> gradient_type = number_of(bound.weight_gradient_type);
  if (!gradient_type.has_value() || call.classes == 0 || call.width == 0) return std::nullopt;
  call.weight_gradient_type = *gradient_type;
  return bound;
}

bool has_kernel(const BoundLoss& bound, const blocked::MicroKernels& kernels) {
  return bound.call.type == blocked::Number::kF32 ? kernels.f32 : kernels.bf16;
}
}  // namespace

uint64_t blocked_loss_scratch(const Node& node, const std::vector<Tensor>& x, const blocked::MicroKernels& kernels,
                              int threads) {
  std::optional<BoundLoss> bound = bind(node, x);
  if (!bound.has_value() || !has_kernel(*bound, kernels)) return 0;
  // Which results there are decides the size; where they are does not.
  char any = 0;
  if (bound->wants_hidden) bound->call.hidden_gradient = &any;
  if (bound->wants_weight) bound->call.weight_gradient = &any;
  bound->call.chunk = blocked::frugal_chunk(bound->call);
  return aligned(blocked::workspace_bytes(bound->call, threads)) + bound->copied_bytes;
}

std::optional<std::vector<Tensor>> run_blocked_loss(const Node& node, const std::vector<Tensor>& x,
                                                    const blocked::MicroKernels& kernels) {
  std::optional<BoundLoss> bound = bind(node, x);
  if (!bound.has_value() || !has_kernel(*bound, kernels)) return std::nullopt;
  blocked::LinearCrossEntropy& call = bound->call;
  const Tensor loss = at::empty({call.tokens}, at::kFloat);
  const Tensor logp_sum = at::empty({call.tokens}, at::kFloat);
  const Tensor hidden_gradient =
      at::empty({bound->wants_hidden ? call.tokens : 0, call.width}, bound->hidden.options());
  const Tensor weight_gradient =
      at::empty({bound->wants_weight ? call.classes : 0, call.width}, bound->weight_gradient_type);
  call.hidden = bound->hidden.const_data_ptr();
  call.weight = bound->weight.const_data_ptr();
  call.targets = bound->targets.const_data_ptr<int64_t>();
  if (bound->gradient.defined()) call.gradient = bound->gradient.const_data_ptr<float>();
  if (bound->sum_gradient.defined()) call.sum_gradient = bound->sum_gradient.const_data_ptr<float>();
  call.loss = static_cast<float*>(memory_of(loss));
  call.logp_sum = static_cast<float*>(memory_of(logp_sum));
  call.hidden_gradient = memory_of(hidden_gradient);
  call.weight_gradient = memory_of(weight_gradient);
  call.chunk = blocked::frugal_chunk(call);
  const int threads = at::get_num_threads();
  const Tensor scratch = workspace(blocked::workspace_bytes(call, threads));
  blocked::linear_cross_entropy(call, kernels, threads, memory_of(scratch));
  return {{loss, logp_sum, hidden_gradient, weight_gradient}};
}

}  // namespace stepc
