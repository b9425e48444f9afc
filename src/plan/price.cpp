#include "plan/price.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "base/text.h"
#include "blocked/attention.h"
#include "blocked/matmul.h"
#include "cost/exchange.h"
#include "kernels/kernel_choice.h"
#include "kernels/node_calls.h"
#include "loops/expand_math.h"
#include "loops/loop_work.h"
#include "ops/attention_operands.h"
#include "ops/op_def.h"
#include "plan/aten_kind.h"

namespace stepc {

namespace {

constexpr double kAtenGrain = 32768;  // at::internal::GRAIN_SIZE: elements that are worth a thread's while

// A size that a table is asked for; texts of strangers may say anything.
int64_t whole(double size) { return static_cast<int64_t>(std::clamp(size, 0.0, 1e15)); }

double count_of(const Operand& operand) {
  double count = 1;
  for (int64_t size : operand.sizes) count *= static_cast<double>(size);
  return count;
}

// Matrices that lie one after the other, with one stride from each to the next.
bool is_row_of_matrices(const Operand& operand) {
  std::optional<int64_t> next;
  for (size_t d = std::max<size_t>(operand.sizes.size(), 2) - 2; d-- > 0;) {
    if (operand.sizes[d] == 1) continue;
    if (next && operand.strides[d] != *next) return false;
    next = operand.sizes[d] * operand.strides[d];
  }
  return true;
}

double length_of(const Operand& heads) {  // (batch, heads, length, width)
  return heads.sizes.size() < 2 ? 1 : static_cast<double>(heads.sizes[heads.sizes.size() - 2]);
}
// A table of rates has as many keys as queries.
int64_t attention_length(const Operand& queries, const Operand& keys) {
  return whole(std::sqrt(length_of(queries) * length_of(keys)));
}

// The dimension whose elements lie side by side; none: no two do.
size_t innermost(const Operand& operand) {
  for (size_t d = operand.sizes.size(); d-- > 0;)
    if (operand.sizes[d] > 1 && operand.strides[d] == 1) return d;
  return operand.sizes.size();
}

// Rows of elements that lie side by side in both; 0: they are long, or all of them. Where shapes differ, `b` counts as
// contiguous.
double short_rows(const Operand& a, const Operand& b) {
  constexpr int64_t kLong = 512;
  const bool alike = a.sizes == b.sizes;
  if (!alike && count_of(a) != count_of(b)) return 0;
  int64_t run = 1;
  for (size_t d = a.sizes.size(); d-- > 0 && run < kLong;) {
    if (a.sizes[d] == 1) continue;
    if (a.strides[d] == 0 || (alike && b.strides[d] == 0)) return 0;
    if (a.strides[d] != run || (alike && b.strides[d] != run))
      return run == 1 ? 0 : count_of(a) / static_cast<double>(run);
    run *= a.sizes[d];
  }
  return 0;
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
  constexpr std::array<std::string_view, kWorkClasses> kNames = {
      "matmul (blocked)", "matmul (ATen)",    "attention (blocked)", "attention (ATen)",
      "loss (blocked)",   "generated kernel", "convolution",         "elementwise (ATen)",
      "reduction (ATen)", "norm (ATen)",      "scatter (ATen)",      "random draw (ATen)",
      "strided (ATen)",   "own operator",     "collective",          "host"};
  return kNames[static_cast<size_t>(work)];
}

double elements_shown(const Shape& sizes, const Shape& strides) {
  double count = 1;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (strides[d] != 0 || sizes[d] == 0) count *= static_cast<double>(sizes[d]);
  return count;
}

double bytes_shown(const Operand& operand) {
  return elements_shown(operand.sizes, operand.strides) * static_cast<double>(size_of(operand.dtype));
}

double bytes_of_call(const Schedule& schedule, const Instruction& instruction) {
  double bytes = 0;
  for (const auto* operands : {&instruction.reads, &instruction.writes})
    for (OperandId id : *operands)
      if (id.valid()) bytes += bytes_shown(schedule.operands[id.index()]);
  return bytes;
}

double calls_of(const Instruction& instruction) {
  const bool is_list = instruction.op.starts_with("aten::_foreach") || instruction.op.starts_with("aten::_fused");
  return is_list ? static_cast<double>(std::max<size_t>(instruction.writes.size(), 1)) : 1;
}

DType dtype_of_call(const Schedule& schedule, const Instruction& instruction) {
  const std::vector<OperandId>& operands = instruction.writes.empty() ? instruction.reads : instruction.writes;
  if (operands.empty() || !operands.front().valid()) return DType::kF32;
  const DType dtype = schedule.operands[operands.front().index()].dtype;
  return is_floating(dtype) && size_of(dtype) == 2 ? DType::kBF16 : DType::kF32;
}

Pricer::Pricer(const Schedule& schedule, const Target& target)
    : schedule_(schedule),
      target_(target),
      rates_(target.rates),
      threads_(std::max(1, schedule.threads)),
      on_gpu_(target.gpu.has_value()) {
  if (on_gpu_) return;
  programs_.reserve(schedule.programs.size());
  for (const LoopProgram& program : schedule.programs) programs_.push_back(price_program(expand_math(program)));
  for (const CallRate& rate : rates_.calls) calls_[{rate.op, rate.dtype}] = &rate;
}

// On a GPU graphs have the addresses.
double Pricer::bind_seconds() const {
  if (on_gpu_) return 0;
  return rates_.input_seconds * static_cast<double>(schedule_.inputs.size());
}

double Pricer::seconds_of(const Price& price, double traffic_seconds) const {
  if (price.work == WorkClass::kHost) return price.call_seconds;
  return price.call_seconds +
         (on_gpu_ ? std::max(price.compute_seconds, traffic_seconds) : price.compute_seconds + traffic_seconds);
}

const CallRate* Pricer::call_rate(const Instruction& instruction) const {
  // An op of the table is usually the call of its name.
  std::vector<std::string> names = {instruction.op};
  if (instruction.kind == Instruction::Kind::kOp)
    for (const char* overload : {"", ".Tensor"}) names.push_back(str("aten::{}{}", instruction.op, overload));
  for (const DType dtype : {dtype_of_call(schedule_, instruction), DType::kF32})
    for (const std::string& name : names)
      if (const auto found = calls_.find({name, dtype}); found != calls_.end()) return found->second;
  return nullptr;
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

// The epilogue's kernel for one kind of tile, as often as its tiles cover the result.
double Pricer::epilogue_seconds(const MatmulCall& call, int64_t rows, int64_t columns) const {
  for (size_t kind = 0; kind < call.epilogue_programs.size(); ++kind) {
    if (call.epilogue_programs[kind] == kNoProgram) continue;
    const int64_t tile_rows = kind % 2 == 0 ? blocked::kTileRows : rows % blocked::kTileRows;
    const int64_t tile_columns = kind / 2 == 0 ? blocked::kTileColumns : columns % blocked::kTileColumns;
    if (tile_rows == 0 || tile_columns == 0) continue;
    const double tiles = static_cast<double>(rows) * static_cast<double>(columns) /
                         (static_cast<double>(tile_rows) * static_cast<double>(tile_columns));
    // Each tile is one thread's.
    return programs_[call.epilogue_programs[kind]].seconds * tiles / threads_;
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
  // Dimensions in front count as rows.
  const int64_t rows = whole(count_of(left) / static_cast<double>(std::max<int64_t>(inner, 1)));
  double seconds = 0;
  int64_t columns = 0;
  for (const MatmulCall::Product& product : call.products) {
    const int64_t n = extent(operand(instruction.reads[product.right]), !product.transposed);
    columns = n;
    const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(n) * static_cast<double>(inner);
    seconds += flops / matmul_rate(rates_, KernelOwner::kBlocked, left.dtype, rows, n, inner);
  }
  return {WorkClass::kMatmulBlocked, seconds + epilogue_seconds(call, rows, columns), rates_.instruction_seconds};
}

// On a GPU bf16 and f16 are alike, and so are both float8.
DType Pricer::measured_as(DType dtype) const {
  if (is_float8(dtype)) return DType::kF8E4M3;
  return on_gpu_ && dtype == DType::kF16 ? DType::kBF16 : dtype;
}

double Pricer::library_rate(DType dtype, int64_t rows, int64_t columns, int64_t inner) const {
  return matmul_rate(rates_, KernelOwner::kLibrary, measured_as(dtype), rows, columns, inner);
}

// Of two matrices, or rows of them; flops where the Schedule knows them.
double Pricer::library_matmul_seconds(const Instruction& instruction) const {
  const auto& reads = instruction.reads;
  if (reads.size() < 2 || instruction.writes.empty()) return 0;
  const Operand& out = operand(instruction.writes.front());
  const double count = std::max(count_of(out), 1.0);
  // The two are the last operands, but a bias may stand in front of or behind them.
  const bool is_scaled = is_float8(operand(reads.front()).dtype);  // its scales stand behind
  const bool has_bias_first = !is_scaled && reads.size() > 2 && base_name(instruction.op) != "aten::linear";
  const Operand& left = operand(reads[has_bias_first ? 1 : 0]);
  const Operand& right = operand(reads[has_bias_first ? 2 : 1]);
  const DType dtype = is_scaled ? left.dtype : out.dtype;
  double flops = instruction.work.all_flops();
  if (flops == 0) flops = 2 * count * std::sqrt(count_of(left) * count_of(right) / count);
  const size_t rank = out.sizes.size();
  const int64_t columns = rank == 0 ? 1 : out.sizes[rank - 1];
  const auto inner = whole(flops / (2 * count));
  // Dimensions in front count as rows, where they do not have a right matrix each.
  if (right.sizes.size() <= 2)
    return flops /
           library_rate(dtype, whole(count / static_cast<double>(std::max<int64_t>(columns, 1))), columns, inner);
  const int64_t rows = rank < 2 ? 1 : out.sizes[rank - 2];
  if (const std::optional<double> rate = batched_matmul_rate(rates_, dtype, rows, columns, inner)) return flops / *rate;
  // The threads share the pairs: as if their rows were one matrix's. A GPU's multiprocessors share all of them.
  double batch = count / std::max(static_cast<double>(rows) * static_cast<double>(columns), 1.0);
  if (!on_gpu_) batch = std::min(batch, static_cast<double>(threads_));
  return flops / library_rate(dtype, whole(static_cast<double>(rows) * batch), columns, inner);
}

// How long documents are, as a share of the row that they are packed in: of what attention would take if it were one.
double Pricer::share_of_documents(const Instruction& instruction) const {
  if (instruction.aten || !attends(instruction.op) ||
      !attention_places(instruction.op).has_documents(instruction.reads.size()))
    return 1;
  OpCall call{{}, instruction.attrs};
  for (OperandId id : instruction.reads) call.inputs.push_back({operand(id).dtype, operand(id).sizes});
  const double whole_row = flops_of(op_def(instruction.op), call);
  return whole_row > 0 ? std::min(1.0, instruction.work.all_flops() / whole_row) : 1;
}

double Pricer::library_attention_seconds(const Instruction& instruction, bool backward) const {
  const size_t keys_at = backward ? 2 : 1;
  if (instruction.reads.size() <= keys_at) return 0;
  const Operand& q = operand(instruction.reads.front());
  const Operand& k = operand(instruction.reads[keys_at]);
  double flops = instruction.work.all_flops();
  if (flops == 0) flops = (backward ? 10 : 4) * count_of(q) * length_of(k);
  int64_t length = attention_length(q, k);
  // Documents share a call: short ones are as fast as the shortest row that was measured, which alone fills no GPU.
  if (const double share = share_of_documents(instruction); share < 1) {
    int64_t shortest = length;
    for (const AttentionRate& rate : rates_.attentions)
      if (rate.owner == KernelOwner::kLibrary && rate.backward == backward) shortest = std::min(shortest, rate.length);
    length = std::max(shortest, whole(share * static_cast<double>(length)));
  }
  return flops / attention_rate(rates_, KernelOwner::kLibrary, measured_as(q.dtype), backward, length,
                                q.sizes.empty() ? 1 : q.sizes.back());
}

double Pricer::convolution_seconds(const Instruction& instruction, bool backward) const {
  const size_t weight_at = backward ? 2 : 1;
  if (instruction.reads.size() <= weight_at || instruction.writes.empty()) return 0;
  const Operand& images = operand(instruction.reads[weight_at - 1]);
  const Operand& weight = operand(instruction.reads[weight_at]);  // (out, in of a group, ...)
  if (weight.sizes.size() < 2 || images.sizes.size() < 2) return 0;
  const Operand& out = operand(backward ? instruction.reads.front() : instruction.writes.front());
  const double channels = std::max(static_cast<double>(weight.sizes[0]), 1.0);
  const double flops = (backward ? 4 : 2) * count_of(out) * count_of(weight) / channels;
  if (on_gpu_)
    return flops / library_rate(out.dtype, whole(count_of(out) / channels), weight.sizes[0],
                                whole(count_of(weight) / channels));
  const bool depthwise = weight.sizes[1] == 1 && images.sizes[1] > 1;
  return flops / convolution_rate(rates_, out.dtype, backward, depthwise, whole(count_of(out) / channels),
                                  weight.sizes[0], whole(count_of(weight) / channels));
}

// What the kernel fills up takes time as what was asked for.
Price Pricer::price_attention(const Instruction& instruction) const {
  std::vector<TensorLayout> layouts;
  for (OperandId id : instruction.reads)
    layouts.push_back({{operand(id).dtype, operand(id).sizes}, operand(id).strides});
  const bool backward = instruction.writes.size() > 2;
  const Operand& q = operand(instruction.reads[backward ? 1 : 0]);
  const Operand& k = operand(instruction.reads[backward ? 2 : 1]);
  double flops = instruction.work.all_flops();
  int64_t length = attention_length(q, k);
  if (const std::optional<BoundAttention> bound = bind_attention(instruction.op, instruction.attrs, layouts)) {
    flops *= backward ? padding_of_attention_backward(bound->call) : padding_of_attention(bound->call);
    if (backward) length = whole(length_of_attention_backward(bound->call));
  }
  return {WorkClass::kAttentionBlocked,
          flops / attention_rate(rates_, KernelOwner::kBlocked, q.dtype, backward, length, q.sizes[3]),
          rates_.instruction_seconds + rates_.fork_seconds};
}

// What it computes is known only by how much that is: more for each element than functions of one take are sums of
// products, at the rate of a product of matrices with such a result; the rest is elementwise.
double Pricer::own_operator_seconds(const Instruction& instruction, double most_elements, double alone) const {
  constexpr double kOpsOfAFunction = 32;
  const double flops = instruction.work.all_flops();
  const bool is_product = flops > kOpsOfAFunction * most_elements && !instruction.writes.empty();
  if (!is_product) return flops / rates_.aten_flops_per_second * alone;
  const Operand& out = operand(instruction.writes.front());
  const double count = std::max(count_of(out), 1.0);
  const double columns = out.sizes.empty() ? 1 : std::max(static_cast<double>(out.sizes.back()), 1.0);
  return flops / matmul_rate(rates_, KernelOwner::kLibrary, out.dtype, whole(count / columns), whole(columns),
                             whole(flops / (2 * count)));
}

double Pricer::most_elements(const Instruction& instruction) const {
  double most = 0;
  for (const auto* operands : {&instruction.reads, &instruction.writes})
    for (OperandId id : *operands)
      if (id.valid()) most = std::max(most, elements_shown(operand(id).sizes, operand(id).strides));
  return most;
}

Price Pricer::price_aten(const Instruction& instruction) const {
  const double bytes = bytes_of_call(schedule_, instruction);
  const double most = most_elements(instruction);
  double rows = 0;  // short ones
  bool across = false;
  for (const auto* operands : {&instruction.reads, &instruction.writes})
    for (OperandId id : *operands) {
      if (!id.valid()) continue;
      const Operand& one = operand(id);
      if (instruction.writes.empty() || !instruction.writes.front().valid()) continue;
      across = across || is_across(one, operand(instruction.writes.front()));
      rows = std::max(rows, short_rows(one, operand(instruction.writes.front())));
    }
  const bool shares = most >= kAtenGrain && threads_ > 1;
  const double fork = shares ? rates_.fork_seconds : 0;
  const double alone = shares ? 1 : threads_;
  const double calls = calls_of(instruction);
  // Of many tensors that become one, each has its turn.
  constexpr size_t kFew = 8;
  const size_t many = calls > 1 ? 0 : std::max(instruction.reads.size(), kFew) - kFew;
  const double joined = static_cast<double>(many) * rates_.instruction_seconds;
  if (instruction.aten && instruction.aten->rule)
    return {WorkClass::kOwn, own_operator_seconds(instruction, most, alone), rates_.aten_call_seconds + fork};
  // Of the call that calibration has measured, or one like it, which takes `beyond` a plain one.
  const CallRate* const rate = call_rate(instruction);
  const auto of = [&](WorkClass work, double seconds, double beyond = 0) {
    return Price{work, seconds,
                 (rate == nullptr ? rates_.aten_call_seconds + beyond : rate->seconds) * calls + joined + fork};
  };
  const auto of_bytes = [&](WorkClass work, double seconds, double beyond = 0) {
    return of(work, rate == nullptr ? seconds : bytes / rate->bytes_per_second * alone, beyond);
  };
  const auto of_flops = [&](WorkClass work, double seconds) {
    return Price{work, seconds, rates_.aten_call_seconds + fork};
  };
  switch (kind_of(instruction)) {
    case AtenKind::kMatmul: {
      // Of a batch of heads at::matmul makes rows of matrices first: each is allocated, then written.
      double copies = 0, copied = 0;
      for (OperandId id : instruction.reads) {
        if (!id.valid() || is_row_of_matrices(operand(id))) continue;
        ++copies;
        copied += static_cast<double>(bytes_of(operand(id)));
      }
      return {WorkClass::kMatmulLibrary,
              library_matmul_seconds(instruction) + 2 * copied / rates_.aten_strided_bytes_per_second * alone,
              rates_.aten_call_seconds * (1 + 2 * copies) + fork};
    }
    case AtenKind::kAttention:
      return of_flops(WorkClass::kAttentionLibrary, library_attention_seconds(instruction, false));
    case AtenKind::kAttentionBackward:
      return of_flops(WorkClass::kAttentionLibrary, library_attention_seconds(instruction, true));
    case AtenKind::kConvolution:
      return of_flops(WorkClass::kConvolution, convolution_seconds(instruction, false));
    case AtenKind::kConvolutionBackward:
      return of_flops(WorkClass::kConvolution, convolution_seconds(instruction, true));
    case AtenKind::kDraw:
      return of(WorkClass::kDraw, most / rates_.aten_draws_per_second);
    case AtenKind::kGather:
    case AtenKind::kLoss:
      return of(WorkClass::kElementwise, 0, rates_.aten_index_seconds);
    case AtenKind::kScatter:
      return of(WorkClass::kScatter, bytes / rates_.aten_scatter_bytes_per_second, rates_.aten_index_seconds);
    case AtenKind::kReduction:
      return of_bytes(WorkClass::kReduction, bytes / rates_.aten_reduction_bytes_per_second * alone,
                      rates_.aten_reduction_seconds);
    case AtenKind::kNorm:
      return of_bytes(WorkClass::kNorm, bytes / rates_.aten_norm_bytes_per_second * alone, rates_.aten_norm_seconds);
    case AtenKind::kPooling:
      return of(WorkClass::kNorm, bytes / rates_.aten_pooling_bytes_per_second * alone);
    case AtenKind::kRoot:
      return of_bytes(WorkClass::kElementwise, most / rates_.aten_roots_per_second * alone);
    case AtenKind::kElementwise:
      break;
  }
  if (across) return of(WorkClass::kStrided, bytes / rates_.aten_strided_bytes_per_second * alone);
  if (rows > 0) return of(WorkClass::kStrided, rows / rates_.aten_rows_per_second * alone);
  return of_bytes(WorkClass::kElementwise, instruction.work.all_flops() / rates_.aten_flops_per_second * alone);
}

// Numbers that host code gives before the run take none of it.
Price Pricer::price_host(const Instruction& instruction) const {
  const double numbers = instruction.in_place ? static_cast<double>(schedule_.host_numbers.size()) : 0;
  return {WorkClass::kHost, 0,
          instruction.kind == Instruction::Kind::kSeed
              ? rates_.seed_seconds
              : rates_.instruction_seconds + numbers * rates_.host_number_seconds};
}

std::optional<Communication> communication_of(const Schedule& schedule, const Instruction& instruction) {
  if (instruction.kind != Instruction::Kind::kCollective) return std::nullopt;
  double bytes = 0;
  for (OperandId given : instruction.reads) bytes += static_cast<double>(bytes_of(schedule.operands[given.index()]));
  return communication_of(instruction.op, instruction.attrs, bytes);
}

// A hop waits for the one before it; its own memory is read and written meanwhile.
Price Pricer::price_collective(const Instruction& instruction) const {
  const Communication sent = communication_of(schedule_, instruction).value();
  const Exchange took = exchange(rates_, schedule_.mesh, op_def(instruction.op).collective, sent);
  return {WorkClass::kCollective, took.bytes_seconds, took.latency_seconds, took.level};
}

// The nodes' calls on each chunk, and a copy of each result to where it belongs; what goes from one call to the next
// lies as far away as a chunk is long.
Price Pricer::price_nodes(const Instruction& instruction) const {
  const Graph& nodes = schedule_.nodes[*instruction.nodes];
  int64_t count = 1;
  for (const GraphTensor& tensor : nodes.tensors) count = std::max(count, element_count(tensor.type.shape));
  const int64_t whole_chunks = (count + kElementsOfChunk - 1) / kElementsOfChunk;
  const auto chunks = static_cast<double>(whole_chunks);
  const auto elements = static_cast<double>(std::min(count, kElementsOfChunk));
  const bool shares = elements >= kAtenGrain && threads_ > 1;
  const double alone = shares ? 1 : threads_;
  const double call = rates_.aten_call_seconds + (shares ? rates_.fork_seconds : 0);
  Price price{WorkClass::kElementwise, 0, 0};
  for (const Node& node : nodes.nodes) {
    const Work work = work_of(nodes, node);
    const bool reduces = kind_of_row(op_def(node.op)) == AtenKind::kReduction;
    price.compute_seconds += reduces ? work.bytes / rates_.aten_reduction_bytes_per_second * alone
                                     : work.all_flops() / rates_.aten_flops_per_second * alone +
                                           work.bytes / stream_rate(rates_, work.bytes / chunks);
  }
  price.call_seconds = call * chunks * static_cast<double>(nodes.nodes.size() + instruction.writes.size());
  return price;
}

Price Pricer::price(const Instruction& instruction) const {
  if (on_gpu_) return price_on_gpu(instruction);
  const double flops = instruction.work.all_flops();
  switch (instruction.kind) {
    case Instruction::Kind::kGenerated: {
      const ProgramPrice& program = programs_[instruction.program];
      return {WorkClass::kGenerated, program.seconds, rates_.instruction_seconds + program.forks * rates_.fork_seconds};
    }
    case Instruction::Kind::kMatmul:
      return price_matmul(instruction);
    case Instruction::Kind::kAttention:
      return price_attention(instruction);
    case Instruction::Kind::kLoss: {
      // Three products of (tokens, width) and (classes, width) matrices, with an exponential of each of the first's.
      const Operand& hidden = operand(instruction.reads[0]);
      const Operand& weight = operand(instruction.reads[1]);
      const int64_t width = weight.sizes.back();
      const auto tokens = whole(count_of(hidden) / static_cast<double>(std::max<int64_t>(width, 1)));
      constexpr double kOpsOfAnExponential = 20;
      const double exponentials =
          static_cast<double>(tokens) * static_cast<double>(weight.sizes.front()) * kOpsOfAnExponential;
      return {WorkClass::kLoss,
              flops / matmul_rate(rates_, KernelOwner::kBlocked, hidden.dtype, tokens, weight.sizes.front(), width) +
                  exponentials / rates_.lane_ops_per_second,
              rates_.loss_seconds};
    }
    case Instruction::Kind::kNodes:
      return price_nodes(instruction);
    case Instruction::Kind::kCollective:
      return price_collective(instruction);
    case Instruction::Kind::kWait:
      if (!ends_exchange(instruction)) return price_host(instruction);
      return {WorkClass::kCollective, 0, rates_.instruction_seconds};
    case Instruction::Kind::kOp:
    case Instruction::Kind::kAten:
    case Instruction::Kind::kCopy:
      return price_aten(instruction);
    default:
      return price_host(instruction);
  }
}

}  // namespace stepc
