#include "runtime/aten_scratch.h"

#include "ops/op_def.h"
#include "runtime/aten_ops.h"
#include "runtime/blocked_attention.h"
#include "runtime/blocked_calls.h"

namespace stepc {

namespace {
bool is_attention(const Node& node) { return node.op == "attention" || node.op == "attention_backward"; }
}  // namespace

Shape result_strides(const Node& node, const TensorType& type) {
  return is_attention(node) ? attention_strides(type.shape) : contiguous_strides(type.shape);
}

bool writes_in_place(const Node& node) { return node.aten.has_value() || overwrites(node); }

uint64_t aten_scratch_bytes(const Graph&, const Node& node, const std::vector<at::Tensor>& inputs, int threads) {
  return blocked_scratch_bytes(node, inputs, threads);
}

}  // namespace stepc
