#include "schedule/workspaces.h"

#include <algorithm>

#include "base/text.h"
#include "ir/alignment.h"
#include "ops/op_def.h"

namespace stepc {

namespace {

// nullptr: contiguous.
const Shape* recorded_strides(const AtenCall& call, size_t input) {
  const auto found = std::ranges::find(call.layouts, input, &std::pair<uint32_t, Shape>::first);
  return found == call.layouts.end() ? nullptr : &found->second;
}

bool overlaps_itself(const Shape& sizes, const Shape& strides) {
  for (size_t d = 0; d < sizes.size(); ++d)
    if (strides[d] == 0 && sizes[d] > 1) return true;
  return false;
}

bool has_strides(const TensorLayout& layout, const Shape& strides) {
  for (size_t d = 0; d < layout.strides.size(); ++d)
    if (layout.type.shape[d] != 1 && layout.strides[d] != strides[d]) return false;
  return true;
}

uint64_t copied_bytes(const Node& node, const std::vector<TensorLayout>& inputs) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (node.aten && needs_layout(*node.aten, i, inputs[i])) bytes += aligned(bytes_of(inputs[i]));
  return bytes;
}

uint64_t bytes_in_f32(const TensorType& type) {
  return aligned(static_cast<uint64_t>(element_count(type.shape)) * sizeof(float));
}

}  // namespace

bool needs_layout(const AtenCall& call, size_t input, const TensorLayout& layout) {
  if (element_count(layout.type.shape) == 0 || std::ranges::find(call.writes, input) != call.writes.end()) return false;
  const Shape* strides = recorded_strides(call, input);
  if (strides == nullptr || overlaps_itself(layout.type.shape, *strides))
    return !is_contiguous(layout) && !(strides != nullptr && has_strides(layout, *strides));
  return !has_strides(layout, *strides);
}

std::optional<Workspace> known_workspace(const Node& node, const std::vector<TensorLayout>& inputs) {
  if (node.aten) {
    if (!node.aten->measured) return std::nullopt;
    return Workspace{node.aten->workspace_bytes + copied_bytes(node, inputs), node.aten->worker_bytes};
  }
  // One value everywhere is written where it belongs.
  if (has(node, Trait::kSplat)) return Workspace{};
  // A library's matmul: it asks for nothing where it takes the type, and ATen copies only what lies neither
  // in rows nor in columns.
  const bool is_plain =
      has(node, Trait::kContraction) && std::ranges::all_of(inputs, [](const TensorLayout& input) {
        const bool is_wide = input.type.dtype == DType::kF32 || input.type.dtype == DType::kF64;
        return is_wide && input.strides.size() == 2 && (input.strides[0] == 1 || input.strides[1] == 1);
      });
  return is_plain ? std::optional<Workspace>(Workspace{}) : std::nullopt;
}

UnknownWorkspace unknown_workspace(const Node& node, const std::vector<TensorLayout>& inputs,
                                   const std::vector<TensorLayout>& outputs, int threads) {
  UnknownWorkspace call;
  Graph alone;  // whose text says all that the kernel is called with
  Node copy = node;
  copy.group.reset();
  copy.source = {};
  for (size_t i = 0; i < inputs.size(); ++i) {
    const GraphInput input{InputKind::kCaptured, str("{}", i), {}, inputs[i].strides, 0};
    copy.inputs[i] = alone.add_input(input, inputs[i].type);
  }
  copy.outputs.clear();
  std::vector<TensorType> types;
  std::string lie;
  for (const TensorLayout& output : outputs) {
    types.push_back(output.type);
    if (!is_contiguous(output)) lie += str("result {} lies ({})\n", types.size() - 1, fmt::join(output.strides, ", "));
  }
  alone.add_node(copy, types);
  call.key = str("threads {}\n{}{}", threads, to_text(alone), lie);
  call.node = alone.nodes[0];
  call.inputs = inputs;
  call.outputs = outputs;
  return call;
}

Workspace workspace_by_rule(const UnknownWorkspace& call) {
  Workspace workspace;
  for (const TensorLayout& input : call.inputs) workspace.bytes += bytes_in_f32(input.type);
  for (const TensorLayout& output : call.outputs) workspace.bytes += bytes_in_f32(output.type);
  return workspace;
}

}  // namespace stepc
