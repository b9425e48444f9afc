#include "plan/price.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "blocked/matmul.h"
#include "kernels/kernel_choice.h"
#include "loops/expand_math.h"
#include "loops/loop_work.h"
#include "ops/op_def.h"

namespace stepc {

namespace {

// An ATen call whose time goes by something else than its streams.
enum class AtenKind : uint8_t {
  kMatmul,
  kAttention,
  kAttentionBackward,
  kConvolution,
  kConvolutionBackward,
  kReduction,
  kNorm,
  kScatter,
  kDraw,
  kRoot
};
struct AtenName {
  std::string_view name;
  AtenKind kind;
};
constexpr std::array kAtenNames = std::to_array<AtenName>({
    {"aten::mm", AtenKind::kMatmul},
    {"aten::addmm", AtenKind::kMatmul},
    {"aten::bmm", AtenKind::kMatmul},
    {"aten::baddbmm", AtenKind::kMatmul},
    {"aten::linear", AtenKind::kMatmul},
    {"aten::matmul", AtenKind::kMatmul},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", AtenKind::kAttention},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", AtenKind::kAttentionBackward},
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
    {"aten::max_pool2d_with_indices", AtenKind::kNorm},
    {"aten::max_pool2d_with_indices_backward", AtenKind::kNorm},
    {"aten::embedding_dense_backward", AtenKind::kScatter},
    {"aten::index_put", AtenKind::kScatter},
    {"aten::index_put_", AtenKind::kScatter},
    {"aten::index_add_", AtenKind::kScatter},
    {"aten::scatter_add_", AtenKind::kScatter},
});

// "aten::mm" of "aten::mm.out".
std::string_view base_name(std::string_view op) { return op.substr(0, op.find('.')); }

const AtenKind* kind_of(std::string_view op) {
  const auto* const found = std::ranges::find(kAtenNames, base_name(op), &AtenName::name);
  return found == kAtenNames.end() ? nullptr : &found->kind;
}

double count_of(const Operand& operand) {
  double count = 1;
  for (int64_t size : operand.sizes) count *= static_cast<double>(size);
  return count;
}

// The dimension whose elements lie side by side; none: no two do.
size_t innermost(const Operand& operand) {
  for (size_t d = operand.sizes.size(); d-- > 0;)
    if (operand.sizes[d] > 1 && operand.strides[d] == 1) return d;
  return operand.sizes.size();
}

// What goes from one to the other is read or written across strides: other elements lie side by side. Where shapes
// differ, `b` counts as contiguous.
bool is_across(const Operand& a, const Operand& b) {
  size_t last = a.sizes.size();
  while (last > 0 && a.sizes[last - 1] <= 1) --last;
  if (last == 0 || std::ranges::all_of(a.strides, [](int64_t stride) { return stride == 0; })) return false;
  if (a.strides[last - 1] == 0) return false;  // repeats an element
  return innermost(a) != (a.sizes == b.sizes ? innermost(b) : last - 1);
}

}  // namespace

std::string_view name_of(WorkClass work) {
  constexpr std::array<std::string_view, kWorkClasses> kNames = {"matmul (blocked)",    "matmul (ATen)",
                                                                 "attention (blocked)", "attention (ATen)",
                                                                 "loss (blocked)",      "generated kernel",
                                                                 "convolution",         "elementwise (ATen)",
                                                                 "reduction (ATen)",    "norm (ATen)",
                                                                 "scatter (ATen)",      "random draw (ATen)",
                                                                 "strided (ATen)",      "host"};
  return kNames[static_cast<size_t>(work)];
}

double elements_of(const Operand& operand) {
  double count = 1;
  for (size_t d = 0; d < operand.sizes.size(); ++d)
    if (operand.strides[d] != 0 || operand.sizes[d] == 0) count *= static_cast<double>(operand.sizes[d]);
  return count;
}

Pricer::Pricer(const Schedule& schedule, const Target& target)
    : schedule_(schedule), rates_(target.rates), threads_(std::max(1, schedule.threads)) {
  programs_.reserve(schedule.programs.size());
  for (const LoopProgram& program : schedule.programs) programs_.push_back(price_program(expand_math(program)));
}

Pricer::ProgramPrice Pricer::price_program(const LoopProgram& program) const {
  ProgramPrice price;
  for (const LoopPhase& phase : program.phases) {
    const LoopWork work = work_of(program, phase);
    const int64_t shares = (phase.items + std::max<int64_t>(phase.grain, 1) - 1) / std::max<int64_t>(phase.grain, 1);
    const auto used = static_cast<double>(std::clamp<int64_t>(shares, 1, threads_));
    const double together = work.lane_ops / rates_.lane_ops_per_second +
                            work.lane_roots / rates_.lane_roots_per_second +
                            work.scalar_ops / rates_.scalar_ops_per_second +
                            work.calls / rates_.function_calls_per_second + work.gathers / rates_.gathers_per_second;
    price.seconds += together * threads_ / used;
    if (used > 1) ++price.forks;
  }
  return price;
}

// The tail's kernel for one kind of tile, as often as its tiles cover the result.
double Pricer::tail_seconds(const MatmulCall& call, int64_t rows, int64_t columns) const {
  for (size_t kind = 0; kind < call.tail_programs.size(); ++kind) {
    if (call.tail_programs[kind] == kNoProgram) continue;
    const int64_t tile_rows = kind % 2 == 0 ? blocked::kTileRows : rows % blocked::kTileRows;
    const int64_t tile_columns = kind / 2 == 0 ? blocked::kTileColumns : columns % blocked::kTileColumns;
    if (tile_rows == 0 || tile_columns == 0) continue;
    const double tiles = static_cast<double>(rows) * static_cast<double>(columns) /
                         (static_cast<double>(tile_rows) * static_cast<double>(tile_columns));
    // Each tile is one thread's.
    return programs_[call.tail_programs[kind]].seconds * tiles / threads_;
  }
  return 0;
}

Price Pricer::price_matmul(const Instruction& instruction) const {
  const MatmulCall& call = *instruction.matmul;
  const Operand& left = operand(instruction.reads[call.left]);
  const auto extent = [](const Operand& matrix, bool second) {
    return matrix.sizes[matrix.sizes.size() - (second ? 1 : 2)];
  };
  const int64_t inner = extent(left, !call.transposed);
  int64_t rows = 1;  // dimensions in front count as rows
  for (int64_t size : left.sizes) rows *= size;
  rows /= std::max<int64_t>(inner, 1);
  double seconds = 0;
  int64_t columns = 0;
  for (const MatmulCall::Product& product : call.products) {
    const int64_t n = extent(operand(instruction.reads[product.right]), !product.transposed);
    columns = n;
    const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(n) * static_cast<double>(inner);
    seconds += flops / matmul_rate(rates_, KernelOwner::kBlocked, left.dtype, rows, n, inner);
  }
  return {WorkClass::kMatmulBlocked, seconds + tail_seconds(call, rows, columns), rates_.instruction_seconds};
}

Price Pricer::price_aten(const Instruction& instruction) const {
  constexpr double kAtenGrain = 32768;  // at::internal::GRAIN_SIZE: elements that are worth a thread's while
  Price price{WorkClass::kElementwise, 0, rates_.aten_call_seconds};
  const OpDef* const row = instruction.kind == Instruction::Kind::kOp ? find_op(instruction.op) : nullptr;
  const AtenKind* const aten = row == nullptr ? kind_of(instruction.op) : nullptr;
  const std::string_view aten_name = row == nullptr ? base_name(instruction.op) : std::string_view();
  const double flops = instruction.work.all_flops();
  double most = 0;  // elements of the largest operand
  double bytes = 0;
  bool strided = false;
  size_t operands_given = 0;
  for (const auto* operands : {&instruction.reads, &instruction.writes})
    for (OperandId id : *operands) {
      const Operand& one = operand(id);
      most = std::max(most, elements_of(one));
      bytes += elements_of(one) * static_cast<double>(size_of(one.dtype));
      strided = strided || (!instruction.writes.empty() && is_across(one, operand(instruction.writes.front())));
      ++operands_given;
    }
  // A list goes to the kernel tensor by tensor.
  if (aten_name.starts_with("aten::_foreach"))
    price.call_seconds *= static_cast<double>(std::max<size_t>(operands_given, 1));
  const bool shares = most >= kAtenGrain && threads_ > 1;
  if (shares) price.call_seconds += rates_.fork_seconds;
  const double alone = shares ? 1 : threads_;

  const bool is_matmul =
      (row != nullptr && row->has(Trait::kContraction)) || (aten != nullptr && *aten == AtenKind::kMatmul);
  if (is_matmul && instruction.reads.size() >= 2 && !instruction.writes.empty()) {
    const Operand& out = operand(instruction.writes.front());
    const auto& reads = instruction.reads;
    // The two matrices are the last operands but for addmm's, whose first is what is added.
    const Operand& a =
        operand(reads[reads.size() >= 3 && row == nullptr && base_name(instruction.op) != "aten::linear" ? 1 : 0]);
    const double work =
        flops > 0 ? flops
                  : 2 * count_of(out) *
                        std::sqrt(count_of(a) * count_of(operand(reads.back())) / std::max(count_of(out), 1.0));
    const double count = std::max(count_of(out), 1.0);
    const auto inner = static_cast<int64_t>(work / (2 * count));
    const int64_t columns = out.sizes.empty() ? 1 : out.sizes.back();
    int64_t rows = out.sizes.size() < 2 ? 1 : out.sizes[out.sizes.size() - 2];
    if (out.sizes.size() > 2) {
      // Batches share the threads: as if their rows were one matrix's.
      int64_t batches = 1;
      for (size_t d = 0; d + 2 < out.sizes.size(); ++d) batches *= out.sizes[d];
      rows *= std::min<int64_t>(batches, threads_);
    }
    price.work = WorkClass::kMatmulLibrary;
    price.compute_seconds = work / matmul_rate(rates_, KernelOwner::kLibrary, out.dtype, rows, columns, inner);
    return price;
  }
  const bool is_backward =
      aten != nullptr && (*aten == AtenKind::kAttentionBackward || *aten == AtenKind::kConvolutionBackward);
  if ((row != nullptr && (row->kernel == OwnKernel::kAttention || row->kernel == OwnKernel::kAttentionBackward)) ||
      (aten != nullptr && (*aten == AtenKind::kAttention || *aten == AtenKind::kAttentionBackward))) {
    const Operand& q = operand(instruction.reads.front());
    const int64_t length = q.sizes.size() < 2 ? 1 : q.sizes[q.sizes.size() - 2];
    const bool backward = is_backward || instruction.reads.size() > 4;
    const double work = flops > 0 ? flops : (backward ? 10 : 4) * count_of(q) * static_cast<double>(length);
    price.work = WorkClass::kAttentionLibrary;
    price.compute_seconds = work / attention_rate(rates_, KernelOwner::kLibrary, q.dtype, backward, length);
    return price;
  }
  if (aten != nullptr && (*aten == AtenKind::kConvolution || *aten == AtenKind::kConvolutionBackward) &&
      instruction.reads.size() >= 2) {
    const Operand& weight = operand(instruction.reads[is_backward ? 2 : 1]);
    const Operand& out = is_backward ? operand(instruction.reads.front()) : operand(instruction.writes.front());
    const double taps = count_of(weight) / static_cast<double>(std::max<int64_t>(weight.sizes.front(), 1));
    const double work = (is_backward ? 4 : 2) * count_of(out) * taps;
    const auto channels = static_cast<int64_t>(std::sqrt(
        static_cast<double>(weight.sizes[0]) * static_cast<double>(weight.sizes.size() > 1 ? weight.sizes[1] : 1)));
    const auto pixels =
        static_cast<int64_t>(count_of(out) / static_cast<double>(std::max<int64_t>(weight.sizes[0], 1)));
    price.work = WorkClass::kConvolution;
    price.compute_seconds = work / convolution_rate(rates_, is_backward, channels, pixels);
    return price;
  }
  if ((aten != nullptr && *aten == AtenKind::kDraw) || (instruction.aten && instruction.aten->draws) ||
      (row != nullptr && row->has(Trait::kRandom))) {
    price.work = WorkClass::kDraw;
    price.compute_seconds = most / rates_.aten_draws_per_second;
    return price;
  }
  if ((aten != nullptr && *aten == AtenKind::kScatter) ||
      (row != nullptr && row->has(Trait::kOverwrites) && row->index_use)) {
    price.work = WorkClass::kScatter;
    price.compute_seconds = bytes / rates_.aten_scatter_bytes_per_second;
    return price;
  }
  if ((aten != nullptr && *aten == AtenKind::kReduction) || (row != nullptr && row->has(Trait::kReduction))) {
    price.work = WorkClass::kReduction;
    price.compute_seconds = bytes / rates_.aten_reduction_bytes_per_second * alone;
    return price;
  }
  if (aten != nullptr && *aten == AtenKind::kNorm) {
    price.work = WorkClass::kNorm;
    price.compute_seconds = bytes / rates_.aten_norm_bytes_per_second * alone;
    return price;
  }
  if (strided) {
    price.work = WorkClass::kStrided;
    price.compute_seconds = bytes / rates_.aten_strided_bytes_per_second * alone;
    return price;
  }
  price.compute_seconds = aten != nullptr && *aten == AtenKind::kRoot ? most / rates_.aten_roots_per_second * alone
                                                                      : flops / rates_.aten_flops_per_second * alone;
  return price;
}

Price Pricer::price(const Instruction& instruction) const {
  const double flops = instruction.work.all_flops();
  switch (instruction.kind) {
    case Instruction::Kind::kGenerated: {
      const ProgramPrice& program = programs_[instruction.program];
      return {WorkClass::kGenerated, program.seconds, rates_.instruction_seconds + program.forks * rates_.fork_seconds};
    }
    case Instruction::Kind::kMatmul:
      return price_matmul(instruction);
    case Instruction::Kind::kAttention: {
      const bool backward = instruction.writes.size() > 2;
      const Operand& q = operand(instruction.reads[backward ? 1 : 0]);
      return {WorkClass::kAttentionBlocked,
              flops / attention_rate(rates_, KernelOwner::kBlocked, q.dtype, backward, q.sizes[q.sizes.size() - 2]),
              rates_.instruction_seconds + rates_.fork_seconds};
    }
    case Instruction::Kind::kLoss: {
      // Three products of (tokens, width) and (classes, width) matrices, with an exponential of each of the first's.
      const Operand& hidden = operand(instruction.reads[0]);
      const Operand& weight = operand(instruction.reads[1]);
      const int64_t width = weight.sizes.back();
      const auto tokens = static_cast<int64_t>(count_of(hidden) / static_cast<double>(std::max<int64_t>(width, 1)));
      constexpr double kOpsOfAnExponential = 20;
      const double exponentials =
          static_cast<double>(tokens) * static_cast<double>(weight.sizes.front()) * kOpsOfAnExponential;
      return {WorkClass::kLoss,
              flops / matmul_rate(rates_, KernelOwner::kBlocked, hidden.dtype, tokens, weight.sizes.front(), width) +
                  exponentials / rates_.lane_ops_per_second,
              rates_.instruction_seconds + rates_.fork_seconds};
    }
    case Instruction::Kind::kOp:
    case Instruction::Kind::kAten:
    case Instruction::Kind::kCopy:
      return price_aten(instruction);
    default:
      return {WorkClass::kHost, 0, 0};
  }
}

}  // namespace stepc
