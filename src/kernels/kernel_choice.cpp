#include "kernels/kernel_choice.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "ir/alignment.h"
#include "kernels/gpu_choice.h"
#include "kernels/node_calls.h"
#include "loops/lower/element_writer.h"
#include "loops/lower/epilogue.h"
#include "loops/lower/lower.h"
#include "ops/attention_operands.h"
#include "ops/op_def.h"

namespace stepc {

namespace {

using Kind = KernelChoice::Kind;

constexpr size_t kMostBuffers = 64;  // of an epilogue's kernel

KernelChoice made(Kind kind, std::string why) {
  KernelChoice choice;
  choice.kind = kind;
  choice.why = std::move(why);
  return choice;
}

std::string on_blocked(blocked::Number number) {
  return number == blocked::Number::kF32 ? "f32 on the blocked kernel" : "bf16 on the blocked kernel";
}

// ---- nodes alone

std::string why_no_blocked_matmul(DType dtype, const Features& features) {
  const MatmulRule rule = matmul_rule(features);
  if (!number_of(dtype)) return str("{} is not for the blocked kernel", name_of(dtype));
  if (rule.takes(dtype)) return "the blocked kernel does not take operands that lie so";
  if (dtype == DType::kF32 && features.intel) return "f32: the library's matmul is faster on this CPU";
  return str("{}: this machine has no blocked matmul for it", name_of(dtype));
}

KernelChoice choose_matmul(const Node& node, std::span<const TensorLayout> inputs, const Features& features,
                           int threads) {
  MatmulCall call{.left = 0, .transposed = node.attrs.get<bool>("transpose_a")};
  call.products.push_back({1, node.attrs.get<bool>("transpose_b")});
  const std::optional<BoundMatmul> bound = bind_matmul(call, inputs, features);
  if (!bound) return made(Kind::kAten, why_no_blocked_matmul(inputs[0].type.dtype, features));
  KernelChoice choice = made(Kind::kMatmul, on_blocked(bound->call.type));
  choice.scratch_bytes = scratch_of(call, *bound, {}, threads).bytes();
  choice.matmul = std::move(call);
  return choice;
}

KernelChoice choose_attention(const Node& node, std::span<const TensorLayout> inputs, int threads) {
  const std::optional<BoundAttention> bound = bind_attention(node.op, node.attrs, inputs);
  if (!bound) return made(Kind::kAten, "the blocked attention does not take these operands");
  KernelChoice choice = made(Kind::kAttention, on_blocked(bound->call.type));
  choice.scratch_bytes = workspace_bytes(*bound, threads);
  for (uint32_t read : bound->copied) copy_first(choice, read, inputs[read]);
  return choice;
}

KernelChoice choose_loss(const Node& node, std::span<const TensorLayout> inputs, const Features& features,
                         int threads) {
  const std::optional<BoundLoss> bound = bind_loss(node.attrs, inputs, features);
  if (!bound) return made(Kind::kAten, "the blocked loss does not take these operands on this machine");
  KernelChoice choice = made(Kind::kLoss, on_blocked(bound->call.type));
  choice.scratch_bytes = workspace_bytes(*bound, threads);
  for (uint32_t read : bound->copied) copy_first(choice, read, inputs[read]);
  return choice;
}

// ---- groups

TensorLayout layout_of(const Graph& group, const GraphInput& input) {
  return {group.type(input.tensor), strides_of(group, input)};
}

uint32_t place_of(const Graph& group, TensorId input) {
  const auto place = std::ranges::find(group.inputs, input, &GraphInput::tensor) - group.inputs.begin();
  INTERNAL_CHECK_LT(place, std::ssize(group.inputs), "%{} is no input of its group", input);
  return static_cast<uint32_t>(place);
}

struct TileSize {
  int64_t rows, columns;
};

// By tile_kind(); without rows or columns: no tile is of that kind.
std::array<TileSize, kTileKinds> tile_sizes(const Shape& result) {
  using blocked::kTileColumns;
  using blocked::kTileRows;
  const auto last = [](int64_t all, int64_t tile) { return all > tile ? all % tile : 0; };
  const TileSize whole{std::min(result[0], kTileRows), std::min(result[1], kTileColumns)};
  const TileSize rest{last(result[0], kTileRows), last(result[1], kTileColumns)};
  return {{whole, {rest.rows, whole.columns}, {whole.rows, rest.columns}, rest}};
}

// Without its epilogue. UserError: the matmuls are not one call.
MatmulCall call_of_matmuls(const Graph& group) {
  const Node& first = group.nodes.front();
  MatmulCall call{.left = place_of(group, first.inputs[0]), .transposed = first.attrs.get<bool>("transpose_a")};
  for (const Node& node : group.nodes) {
    if (!has(node, Trait::kContraction)) break;
    USER_CHECK(node.inputs[0] == first.inputs[0] && node.attrs.get<bool>("transpose_a") == call.transposed,
               "matmuls of several left operands");
    call.products.push_back({place_of(group, node.inputs[1]), node.attrs.get<bool>("transpose_b")});
  }
  return call;
}

// UserError: the nodes behind the matmuls cannot finish them.
void add_epilogue(const Graph& group, MatmulCall& call, std::vector<LoopProgram>& programs) {
  const std::array<TileSize, kTileKinds> sizes = tile_sizes(group.shape(group.nodes.front().outputs[0]));
  for (const TileSize& size : sizes) {
    if (size.rows == 0 || size.columns == 0) {
      call.epilogue_programs.push_back(kNoProgram);
      continue;
    }
    Epilogue epilogue = epilogue_of(group, size.rows, size.columns, blocked::kTileColumns);
    if (programs.empty()) {  // buffers are those of every kind
      call.epilogue_inputs = std::move(epilogue.inputs);
      call.epilogue_outputs = std::move(epilogue.outputs);
      USER_CHECK(call.products.size() + call.epilogue_inputs.size() + call.epilogue_outputs.size() <= kMostBuffers,
                 "{} tensors are too many to finish matmuls with", group.inputs.size() + group.outputs.size());
    }
    call.epilogue_programs.push_back(static_cast<uint32_t>(programs.size()));
    programs.push_back(lower(epilogue));
  }
}

// What epilogues of every size allow where a tile is read and written at one place, and no matmul reads.
std::vector<std::pair<uint32_t, uint32_t>> in_place_of(const MatmulCall& call, std::span<const LoopProgram> epilogues) {
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  for (size_t i = 0; i < call.epilogue_inputs.size(); ++i) {
    const TileBuffer& from = call.epilogue_inputs[i];
    const bool is_operand = std::ranges::any_of(
        call.products, [&](const MatmulCall::Product& product) { return product.right == from.place; });
    if (is_operand || from.place == call.left) continue;
    for (size_t o = 0; o < call.epilogue_outputs.size(); ++o) {
      const TileBuffer& to = call.epilogue_outputs[o];
      if (from.row_stride != to.row_stride || from.column_stride != to.column_stride) continue;
      const size_t input = call.products.size() + i;
      const size_t output = call.products.size() + call.epilogue_inputs.size() + o;
      const std::pair<uint32_t, uint32_t> pair(static_cast<uint32_t>(input), static_cast<uint32_t>(output));
      const bool all = std::ranges::all_of(epilogues, [&](const LoopProgram& epilogue) {
        return std::ranges::find(epilogue.in_place, pair) != epilogue.in_place.end();
      });
      if (all) pairs.emplace_back(from.place, to.place);
    }
  }
  return pairs;
}

KernelChoice choose_matmul_group(const Graph& group, const Features& features, int threads) {
  std::vector<TensorLayout> inputs;
  for (const GraphInput& input : group.inputs) inputs.push_back(layout_of(group, input));
  MatmulCall call = call_of_matmuls(group);
  const std::optional<BoundMatmul> bound = bind_matmul(call, inputs, features);
  if (!bound) return made(Kind::kNone, why_no_blocked_matmul(inputs[call.left].type.dtype, features));
  KernelChoice choice = made(Kind::kMatmul, on_blocked(bound->call.type));
  if (has_epilogue(group)) {
    add_epilogue(group, call, choice.programs);
    choice.in_place = in_place_of(call, choice.programs);
  } else {
    for (size_t p = 0; p < group.nodes.size(); ++p)
      USER_CHECK(group.outputs.size() == group.nodes.size() && group.outputs[p].tensor == group.nodes[p].outputs[0],
                 "its results are not one of each matmul");
  }
  choice.scratch_bytes = scratch_of(call, *bound, choice.programs, threads).bytes();
  choice.matmul = std::move(call);
  return choice;
}

KernelChoice choose_generated(const Graph& group) {
  KernelChoice choice = made(Kind::kGenerated, "one kernel is generated");
  use_loops(choice, group, lower(group));
  return choice;
}

// ---- on a GPU

KernelChoice choose_gpu_kernel(const Node& node, std::span<const TensorLayout> inputs, const Features& features,
                               const LowerGroup& lower) {
  KernelChoice choice;
  switch (op_def(node.op).kernel) {
    case OwnKernel::kNone:
      choice.why = "ATen's kernel for the GPU";
      choice.workspace_bytes = gpu_index_bytes(node, inputs);
      break;
    case OwnKernel::kMatmul:
      choice.why = "cuBLASLt";
      choice.workspace_bytes = cublas_workspace_bytes(features);
      break;
    case OwnKernel::kScaledMatmul:
      choice.why = "cuBLASLt in float8";
      choice.workspace_bytes = cublas_workspace_bytes(features) + gpu_scaled_matmul_bytes(node.attrs, inputs);
      break;
    case OwnKernel::kMatmulSum:
      choice.why = op_def(node.op).has(Trait::kOverwrites) ? "cuBLASLt, with beta = 1" : "cuBLASLt, with an epilogue";
      choice.workspace_bytes = cublas_workspace_bytes(features);
      break;
    case OwnKernel::kAttention:
    case OwnKernel::kAttentionBackward: {
      const AttentionPlaces places = attention_places(node);
      const bool has_documents = places.has_documents(inputs.size());
      choice.why = gpu_attention_kernel(inputs[0].type.dtype, has_documents);
      choice.workspace_bytes = (places.is_backward ? gpu_attention_backward_bytes(inputs) : 0) +
                               (has_documents ? gpu_documents_bytes(inputs[places.q].type.shape) : 0);
      break;
    }
    case OwnKernel::kLinearCrossEntropy:
      return choose_chunked_loss(node, inputs, features, lower);
  }
  return choice;
}

}  // namespace

void copy_first(KernelChoice& choice, uint32_t read, const TensorLayout& operand) {
  choice.copied.push_back(read);
  choice.scratch_bytes += aligned(bytes_of(operand));
}

void use_loops(KernelChoice& choice, const Graph& group, LoopProgram program) {
  choice.scratch_bytes = static_cast<uint64_t>(program.scratch_bytes);
  choice.in_place = program.in_place;  // by buffers: inputs, then outputs
  for (auto& [read, write] : choice.in_place) write -= static_cast<uint32_t>(group.inputs.size());
  choice.programs = {std::move(program)};
}

KernelChoice choose_kernel(const Node& node, std::span<const TensorLayout> inputs, const Features& features,
                           int threads, const LowerGroup& lower) {
  if (node.aten) return made(Kind::kAten, "an ATen call");
  if (collective_of(node) != Collective::kNone) return choose_collective(node, inputs, features.sm > 0);
  if (features.sm > 0) return choose_gpu_kernel(node, inputs, features, lower);
  switch (op_def(node.op).kernel) {
    case OwnKernel::kNone:
    case OwnKernel::kScaledMatmul:
    case OwnKernel::kMatmulSum:
      break;
    case OwnKernel::kMatmul:
      return choose_matmul(node, inputs, features, threads);
    case OwnKernel::kAttention:
    case OwnKernel::kAttentionBackward:
      return choose_attention(node, inputs, threads);
    case OwnKernel::kLinearCrossEntropy:
      return choose_loss(node, inputs, features, threads);
  }
  return made(Kind::kAten, "no kernel of its own");
}

KernelChoice choose_kernel(const Graph& group, const Features& features, int threads) {
  if (group.outputs.empty()) return made(Kind::kNone, "nothing needs it");
  try {
    return is_matmul_group(group) ? choose_matmul_group(group, features, threads) : choose_generated(group);
  } catch (const UserError& why) {
    return made(Kind::kNone, why.what());
  }
}

KernelChoice choose_node_calls(const Graph& group) {
  KernelChoice choice = made(Kind::kNone, "its nodes are not all of one row of elements");
  choice.nodes = flat_nodes(group);
  if (!choice.nodes) return choice;
  choice.kind = Kind::kNodes;
  choice.why = "one ATen call a node, a chunk of the elements at a time";
  choice.scratch_bytes = bytes_between(*choice.nodes);
  const auto size = [&](TensorId tensor) { return bytes_of(choice.nodes->type(tensor)); };
  for (uint32_t read = 0; read < group.inputs.size(); ++read)
    for (uint32_t write = 0; write < group.outputs.size(); ++write)
      if (size(choice.nodes->inputs[read].tensor) == size(choice.nodes->outputs[write].tensor))
        choice.in_place.emplace_back(read, write);
  return choice;
}

}  // namespace stepc
