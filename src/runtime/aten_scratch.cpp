#include "runtime/aten_scratch.h"

#include "ir/alignment.h"
#include "ops/op_def.h"
#include "runtime/aten_ops.h"
#include "runtime/blocked_attention.h"
#include "runtime/blocked_calls.h"
#include "runtime/opaque_call.h"

namespace stepc {

namespace {
bool is_attention(const Node& node) { return node.op == "attention" || node.op == "attention_backward"; }

// oneDNN's convolutions reorder operands and results into layouts of their own, and sum narrow types in f32; measured
// at 1.2 to 3 times this for single images.
uint64_t convolution_bytes(const Graph& graph, const Node& node) {
  constexpr uint64_t kNarrowBuffers = uint64_t{64} << 10;
  uint64_t bytes = 0;
  bool is_narrow = false;
  for (const std::vector<TensorId>* tensors : {&node.inputs, &node.outputs})
    for (TensorId tensor : *tensors) {
      bytes += aligned(static_cast<uint64_t>(element_count(graph.shape(tensor))) * sizeof(float));
      is_narrow = is_narrow || size_of(graph.type(tensor).dtype) < 4;
    }
  return bytes + (is_narrow ? kNarrowBuffers : 0);
}

uint64_t opaque_bytes(const Graph& graph, const Node& node, const std::vector<at::Tensor>& inputs) {
  uint64_t bytes = node.op.starts_with("aten::convolution") ? convolution_bytes(graph, node) : 0;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (needs_layout(*node.aten, i, inputs[i])) bytes += aligned(inputs[i].nbytes());
  return bytes;
}
}  // namespace

Shape result_strides(const Node& node, const TensorType& type) {
  return is_attention(node) ? attention_strides(type.shape) : contiguous_strides(type.shape);
}

bool writes_in_place(const Node& node) { return node.aten.has_value() || overwrites(node); }

uint64_t aten_scratch_bytes(const Graph& graph, const Node& node, const std::vector<at::Tensor>& inputs,
                            const blocked::MicroKernels& kernels, int threads) {
  if (node.aten) return opaque_bytes(graph, node, inputs);
  return blocked_scratch_bytes(node, inputs, kernels, threads);
}

}  // namespace stepc
