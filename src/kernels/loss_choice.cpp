// The linear layer with its cross-entropy, on operands that lie so.
#include <algorithm>

#include "base/check.h"
#include "ir/alignment.h"
#include "kernels/gpu_choice.h"
#include "kernels/kernel_choice.h"
#include "loops/lower/lower.h"

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

// ---- on a GPU

namespace {

// In rows or in columns, with gaps between them.
bool is_matrix(const TensorLayout& x) {
  return has_dense_rows(x) || (x.strides[0] == 1 && x.strides[1] >= x.type.shape[0]);
}

bool is_counted(const TensorLayout& x) { return is_floating(x.type.dtype) && size_of(x.type.dtype) >= 2; }

KernelChoice by_aten(std::string why) {
  KernelChoice choice;
  choice.why = std::move(why);
  return choice;
}

void use_loss_rows(KernelChoice& choice, const Node& node, std::span<const TensorLayout> inputs,
                   const LowerGroup& lower) {
  const int64_t tokens = inputs[0].type.shape[0], classes = inputs[1].type.shape[0], chunk = choice.loss->tokens;
  const auto of_rows = [&](int64_t rows) {
    LoopProgram program = lower(loss_rows(node.attrs, inputs[0].type.dtype, rows, classes, inputs.size()));
    const std::pair in_place(0U, static_cast<uint32_t>(inputs.size()) - 1 + 2);  // the logits, behind two sums a row
    USER_CHECK(inputs.size() == 3 || std::ranges::find(program.in_place, in_place) != program.in_place.end(),
               "its rows' gradients cannot lie where their logits do");
    return program;
  };
  try {
    choice.programs = {of_rows(chunk)};
    if (tokens % chunk != 0) choice.programs.push_back(of_rows(tokens % chunk));
  } catch (const UserError& error) {
    choice = by_aten(error.what());
  }
}

LoopProgram lower_for_any_card(const Graph& group) {
  return lower(group, Together::kConnected, LoopLimits{.earlier_sweeps = true});
}

}  // namespace

KernelChoice choose_chunked_loss(const Node& node, std::span<const TensorLayout> inputs, const Features& features,
                                 const LowerGroup& lower) {
  const Shape& hidden = inputs[0].type.shape;
  const Shape& weight = inputs[1].type.shape;
  if (!is_counted(inputs[0]) || element_count(hidden) == 0 || element_count(weight) == 0)
    return by_aten("ATen's calls: no kernel is generated for its rows");
  KernelChoice choice;
  choice.kind = KernelChoice::Kind::kLoss;
  choice.why = "cuBLASLt and a row kernel, a chunk of tokens at a time";
  const int64_t chunk = std::min(hidden[0], kGpuLossChunk);
  choice.loss = ChunkedLoss{chunk, 0, hidden[0] % chunk == 0 ? kNoProgram : 1};
  choice.scratch_bytes = gpu_loss_bytes(node.attrs, inputs, chunk);
  choice.workspace_bytes = cublas_workspace_bytes(features);
  for (uint32_t i = 0; i < inputs.size(); ++i)
    if (!is_contiguous(inputs[i]) && !(i < 2 && is_matrix(inputs[i]))) copy_first(choice, i, inputs[i]);
  use_loss_rows(choice, node, inputs, lower ? lower : LowerGroup(lower_for_any_card));
  return choice;
}

}  // namespace stepc
