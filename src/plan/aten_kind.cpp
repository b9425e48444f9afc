#include "plan/aten_kind.h"

#include <algorithm>
#include <array>

namespace stepc {

namespace {

struct AtenName {
  std::string_view name;
  AtenKind kind;
};
constexpr std::array kAtenNames = std::to_array<AtenName>({
    {"aten::mm", AtenKind::kMatmul},
    {"aten::addmm", AtenKind::kMatmul},
    {"aten::_scaled_mm", AtenKind::kMatmul},
    {"aten::bmm", AtenKind::kMatmul},
    {"aten::baddbmm", AtenKind::kMatmul},
    {"aten::linear", AtenKind::kMatmul},
    {"aten::matmul", AtenKind::kMatmul},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", AtenKind::kAttention},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", AtenKind::kAttentionBackward},
    {"aten::_scaled_dot_product_flash_attention", AtenKind::kAttention},
    {"aten::_scaled_dot_product_flash_attention_backward", AtenKind::kAttentionBackward},
    {"aten::_scaled_dot_product_cudnn_attention", AtenKind::kAttention},
    {"aten::_scaled_dot_product_cudnn_attention_backward", AtenKind::kAttentionBackward},
    {"aten::_scaled_dot_product_efficient_attention", AtenKind::kAttention},
    {"aten::_scaled_dot_product_efficient_attention_backward", AtenKind::kAttentionBackward},
    {"aten::convolution", AtenKind::kConvolution},
    {"aten::convolution_overrideable", AtenKind::kConvolution},
    {"aten::mkldnn_convolution", AtenKind::kConvolution},
    {"aten::convolution_backward", AtenKind::kConvolutionBackward},
    {"aten::sum", AtenKind::kReduction},
    {"aten::mean", AtenKind::kReduction},
    {"aten::amax", AtenKind::kReduction},
    {"aten::argmax", AtenKind::kReduction},
    {"aten::all", AtenKind::kReduction},
    {"aten::any", AtenKind::kReduction},
    {"aten::cumsum", AtenKind::kReduction},
    {"aten::linalg_vector_norm", AtenKind::kReduction},
    {"aten::_foreach_norm", AtenKind::kReduction},
    {"aten::var_mean", AtenKind::kReduction},
    {"aten::bernoulli", AtenKind::kDraw},
    {"aten::bernoulli_", AtenKind::kDraw},
    {"aten::normal_", AtenKind::kDraw},
    {"aten::uniform_", AtenKind::kDraw},
    {"aten::random_", AtenKind::kDraw},
    {"aten::multinomial", AtenKind::kDraw},
    {"aten::sqrt", AtenKind::kRoot},
    {"aten::rsqrt", AtenKind::kRoot},
    {"aten::native_layer_norm", AtenKind::kNorm},
    {"aten::native_layer_norm_backward", AtenKind::kNorm},
    {"aten::native_group_norm", AtenKind::kNorm},
    {"aten::native_group_norm_backward", AtenKind::kNorm},
    {"aten::native_batch_norm", AtenKind::kNorm},
    {"aten::native_batch_norm_backward", AtenKind::kNorm},
    {"aten::_softmax", AtenKind::kNorm},
    {"aten::_softmax_backward_data", AtenKind::kNorm},
    {"aten::_safe_softmax", AtenKind::kNorm},
    {"aten::_log_softmax", AtenKind::kNorm},
    {"aten::_log_softmax_backward_data", AtenKind::kNorm},
    {"aten::max_pool2d_with_indices", AtenKind::kPooling},
    {"aten::embedding", AtenKind::kGather},
    {"aten::nll_loss_forward", AtenKind::kGather},
    {"aten::index", AtenKind::kGather},
    {"aten::index_select", AtenKind::kGather},
    {"aten::gather", AtenKind::kGather},
    {"aten::embedding_dense_backward", AtenKind::kScatter},
    {"aten::index_put", AtenKind::kScatter},
    {"aten::index_put_", AtenKind::kScatter},
    {"aten::index_add_", AtenKind::kScatter},
    {"aten::scatter_add_", AtenKind::kScatter},
});

}  // namespace

std::string_view base_name(std::string_view op) { return op.substr(0, op.find('.')); }

AtenKind kind_of_row(const OpDef& row) {
  if (row.has(Trait::kContraction)) return AtenKind::kMatmul;
  if (row.kernel == OwnKernel::kAttention) return AtenKind::kAttention;
  if (row.kernel == OwnKernel::kAttentionBackward) return AtenKind::kAttentionBackward;
  if (row.kernel == OwnKernel::kLinearCrossEntropy) return AtenKind::kLoss;
  if (row.has(Trait::kRandom)) return AtenKind::kDraw;
  if (row.index_use) return row.has(Trait::kOverwrites) ? AtenKind::kScatter : AtenKind::kGather;
  return row.has(Trait::kReduction) ? AtenKind::kReduction : AtenKind::kElementwise;
}

AtenKind kind_of_call(std::string_view op) {
  const auto* const found = std::ranges::find(kAtenNames, base_name(op), &AtenName::name);
  return found == kAtenNames.end() ? AtenKind::kElementwise : found->kind;
}

AtenKind kind_of(const Instruction& instruction) {
  if (const OpDef* row = find_op(instruction.op); row != nullptr && instruction.kind == Instruction::Kind::kOp)
    return kind_of_row(*row);
  const AtenKind kind = kind_of_call(instruction.op);
  const bool is_plain = kind == AtenKind::kElementwise;
  return is_plain && instruction.aten && instruction.aten->draws ? AtenKind::kDraw : kind;
}

}  // namespace stepc
