// The blocked linear layer with its cross-entropy, on operands that lie so.
#include "ir/alignment.h"
#include "kernels/kernel_choice.h"

namespace stepc {

namespace {

bool has_dense_rows(const TensorLayout& x) { return x.strides[1] == 1 && x.strides[0] >= x.type.shape[1]; }

// Which gradients there are decides sizes; where they are does not.
blocked::LinearCrossEntropy with_gradients(const BoundLoss& bound) {
  static char somewhere = 0;
  blocked::LinearCrossEntropy call = bound.call;
  if (bound.wants_hidden) call.hidden_gradient = &somewhere;
  if (bound.wants_weight) call.weight_gradient = &somewhere;
  return call;
}

}  // namespace

std::optional<BoundLoss> bind_loss(const Attrs& attrs, std::span<const TensorLayout> inputs, const Features& features) {
  const std::optional<blocked::Number> type = number_of(inputs[0].type.dtype);
  const std::optional<blocked::Number> gradient_type = number_of(attrs.get<DType>("gradient_dtype"));
  if (!type || !gradient_type) return std::nullopt;
  if (*type == blocked::Number::kF32 ? !features.f32 : !features.bf16) return std::nullopt;
  const Shape& hidden = inputs[0].type.shape;
  const Shape& weight = inputs[1].type.shape;
  if (weight[0] == 0 || weight[1] == 0) return std::nullopt;

  BoundLoss bound;
  bound.wants_hidden = inputs.size() > 3;  // see ops/rows/loss.cpp
  bound.wants_weight = inputs.size() > 3 && !attrs.get<bool>("frozen");
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool may_have_gaps = i < 2;  // of hidden and weight, between rows
    if (!is_contiguous(inputs[i]) && !(may_have_gaps && has_dense_rows(inputs[i])))
      bound.copied.push_back(static_cast<uint32_t>(i));
  }
  blocked::LinearCrossEntropy& call = bound.call;
  call.type = *type;
  call.tokens = hidden[0];
  call.width = hidden[1];
  call.classes = weight[0];
  call.hidden_stride = has_dense_rows(inputs[0]) ? inputs[0].strides[0] : hidden[1];
  call.weight_stride = has_dense_rows(inputs[1]) ? inputs[1].strides[0] : weight[1];
  call.hidden_gradient_stride = call.width;
  call.ignore_index = attrs.get<int64_t>("ignore_index");
  call.weight_gradient_type = *gradient_type;
  call.chunk = blocked::frugal_chunk(with_gradients(bound));
  return bound;
}

uint64_t workspace_bytes(const BoundLoss& bound, int threads) {
  return aligned(blocked::workspace_bytes(with_gradients(bound), threads));
}

}  // namespace stepc
