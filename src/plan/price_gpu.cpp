// What an instruction takes on a GPU.
#include <algorithm>

#include "plan/aten_kind.h"
#include "plan/price.h"

namespace stepc {

namespace {
// In float8 operands are copied that do not lie with the sums' dimension innermost.
double copied_bytes(const Instruction& instruction, const Operand& left, const Operand& right) {
  if (!is_float8(left.dtype) || instruction.aten) return 0;
  double bytes = 0;
  if (instruction.attrs.get<bool>("transpose_a")) bytes += static_cast<double>(bytes_of(left));
  if (!instruction.attrs.get<bool>("transpose_b")) bytes += static_cast<double>(bytes_of(right));
  return 2 * bytes;
}
}  // namespace

// Chunks of tokens: three products, and between them a kernel that reads the logits twice and writes their gradients.
double Pricer::gpu_loss_seconds(const Instruction& instruction) const {
  const Operand& hidden = operand(instruction.reads[0]);  // (tokens, width)
  const Operand& weight = operand(instruction.reads[1]);  // (classes, width)
  const int64_t width = weight.sizes.back();
  const auto tokens = static_cast<double>(hidden.sizes.front());
  const int64_t classes = weight.sizes.front();
  const double logits = tokens * static_cast<double>(classes) * static_cast<double>(size_of(hidden.dtype));
  constexpr double kPasses = 3;
  return instruction.work.all_flops() / library_rate(hidden.dtype, hidden.sizes.front(), classes, width) +
         kPasses * logits / target_.bytes_per_second;
}

// ATen's kernels read a long row more often than once: a softmax for the maximum, the sum and the result, where the row
// does not fit in the shared memory that a block has without asking; its gradient, and a layer norm's, twice
// (ATen/native/cuda/SoftMax.cu, layer_norm_kernel.cu).
double Pricer::gpu_norm_seconds(const Instruction& instruction) const {
  constexpr double kSharedBytesOfBlock = 48 * 1024;
  const std::string_view op = base_name(instruction.op);
  if (instruction.reads.empty() || !instruction.reads.front().valid()) return 0;
  const Operand& x = operand(instruction.reads.front());
  const double row = x.sizes.empty() ? 1 : static_cast<double>(x.sizes.back() * size_of(x.dtype));
  const bool is_long = row > kSharedBytesOfBlock;
  double passes = 1;
  if (op == "aten::_softmax" || op == "aten::_log_softmax") passes = is_long ? 3 : 1;
  if (op == "aten::_softmax_backward_data" || op == "aten::_log_softmax_backward_data") passes = is_long ? 2 : 1;
  if (op == "aten::native_layer_norm_backward") passes = 2;
  double bytes = 0;
  for (OperandId id : instruction.reads)
    if (id.valid()) bytes += passes * bytes_shown(operand(id));
  for (OperandId id : instruction.writes)
    if (id.valid()) bytes += bytes_shown(operand(id));
  return bytes / target_.bytes_per_second;
}

// The host goes ahead of the device: what it does takes none of the device's time.
Price Pricer::price_on_gpu(const Instruction& instruction) const {
  const double kernel = rates_.instruction_seconds;
  const double arithmetic = instruction.work.all_flops() / target_.flops_per_second;
  using Kind = Instruction::Kind;
  if (instruction.kind == Kind::kGenerated) return {WorkClass::kGenerated, arithmetic, kernel};
  if (instruction.kind == Kind::kLoss) return {WorkClass::kLoss, gpu_loss_seconds(instruction), kernel};
  if (instruction.kind == Kind::kCollective) return price_collective(instruction);
  if (ends_exchange(instruction)) return {WorkClass::kCollective, 0, 0};
  if (instruction.kind != Kind::kOp && instruction.kind != Kind::kAten && instruction.kind != Kind::kCopy &&
      instruction.kind != Kind::kNodes)
    return {WorkClass::kHost, 0, 0};
  if (instruction.aten && instruction.aten->rule)
    return {WorkClass::kOwn, own_operator_seconds(instruction, most_elements(instruction), 1), kernel};
  switch (kind_of(instruction)) {
    case AtenKind::kMatmul: {
      const auto& reads = instruction.reads;
      const double copied = reads.size() < 2 ? 0 : copied_bytes(instruction, operand(reads[0]), operand(reads[1]));
      return {WorkClass::kMatmulLibrary, library_matmul_seconds(instruction) + copied / target_.bytes_per_second,
              kernel};
    }
    case AtenKind::kAttention:
      return {WorkClass::kAttentionLibrary, library_attention_seconds(instruction, false), kernel};
    case AtenKind::kAttentionBackward:
      return {WorkClass::kAttentionLibrary, library_attention_seconds(instruction, true), kernel};
    case AtenKind::kLoss:
      return {WorkClass::kLoss, gpu_loss_seconds(instruction), kernel};
    case AtenKind::kConvolution:
      return {WorkClass::kConvolution, convolution_seconds(instruction, false), kernel};
    case AtenKind::kConvolutionBackward:
      return {WorkClass::kConvolution, convolution_seconds(instruction, true), kernel};
    case AtenKind::kReduction:
      return {WorkClass::kReduction, arithmetic, kernel};
    case AtenKind::kNorm:
      return {WorkClass::kNorm, std::max(arithmetic, gpu_norm_seconds(instruction)), kernel};
    case AtenKind::kPooling:
      return {WorkClass::kNorm, arithmetic, kernel};
    case AtenKind::kScatter:
      return {WorkClass::kScatter, arithmetic, kernel};
    case AtenKind::kDraw:
      return {WorkClass::kDraw, arithmetic, kernel};
    default:
      return {WorkClass::kElementwise, arithmetic, kernel};
  }
}

}  // namespace stepc
