#include "kernels/gpu_choice.h"

#include <algorithm>

#include "base/text.h"
#include "ir/alignment.h"
#include "ops/op_def.h"
#include "ops/rules/shape_rules.h"

namespace stepc {

namespace {

constexpr int kHopper = 90;
// torch's defaults of CUBLAS_WORKSPACE_CONFIG (docs.pytorch.org, "CUDA semantics", cuBLAS workspaces).
constexpr uint64_t kHopperWorkspace = uint64_t{32} << 20;
constexpr uint64_t kOlderWorkspace = (2 * uint64_t{4096} + 8 * uint64_t{16}) << 10;
// Of an index that is sorted, with its place: keys and values, twice.
constexpr int64_t kBytesOfSortedIndex = 32;

uint64_t bytes_of_elements(int64_t count, DType dtype) {
  return aligned(static_cast<uint64_t>(count) * static_cast<uint64_t>(size_of(dtype)));
}

}  // namespace

uint64_t cublas_workspace_bytes(const Features& features) {
  return features.sm >= kHopper ? kHopperWorkspace : kOlderWorkspace;
}

uint64_t gpu_scaled_matmul_bytes(const Attrs& attrs, std::span<const TensorLayout> inputs) {
  uint64_t bytes = 0;
  if (attrs.get<bool>("transpose_a")) bytes += aligned(bytes_of(inputs[0].type));
  if (!attrs.get<bool>("transpose_b")) bytes += aligned(bytes_of(inputs[1].type));
  return bytes;
}

std::string gpu_attention_kernel(DType dtype, bool has_documents) {
  const bool is_narrow = is_floating(dtype) && size_of(dtype) == 2;
  if (has_documents) return str("{} attention of variable lengths", is_narrow ? "flash" : "memory-efficient");
  return is_narrow ? "cuDNN's attention, or flash attention" : "memory-efficient attention";
}

uint64_t gpu_documents_bytes(const Shape& q) { return bytes_of_elements(q[0] * q[2] + 1, DType::kI32); }

uint64_t gpu_attention_backward_bytes(std::span<const TensorLayout> inputs) {
  const Shape& q = inputs[1].type.shape;
  const Shape& k = inputs[2].type.shape;
  const Shape& v = inputs[3].type.shape;
  uint64_t bytes =
      bytes_of_elements(element_count(q), DType::kF32) + bytes_of_elements(q[0] * q[1] * q[2], DType::kF32);
  if (q[1] == k[1]) return bytes;
  for (const Shape& shared : {k, v})
    bytes += bytes_of_elements(element_count(shared) / std::max<int64_t>(k[1], 1) * q[1], inputs[2].type.dtype);
  return bytes;
}

uint64_t gpu_loss_bytes(const Attrs& attrs, std::span<const TensorLayout> inputs, int64_t chunk) {
  const Shape& hidden = inputs[0].type.shape;  // (tokens, width)
  const Shape& weight = inputs[1].type.shape;  // (classes, width)
  const DType dtype = inputs[0].type.dtype;
  uint64_t bytes = bytes_of_elements(chunk * weight[0], dtype);
  const bool has_weight_gradient = inputs.size() > 3 && !attrs.get<bool>("frozen");
  const bool is_summed = chunk < hidden[0] && attrs.get<DType>("gradient_dtype") != wide(dtype);
  if (has_weight_gradient && is_summed) bytes += bytes_of_elements(element_count(weight), wide(dtype));
  return bytes;
}

uint64_t gpu_index_bytes(const Node& node, std::span<const TensorLayout> inputs) {
  const OpDef& op = op_def(node.op);
  if (!op.index_use || !op.has(Trait::kOverwrites)) return 0;
  int64_t most = 0;
  for (const TensorLayout& one : inputs)
    if (!is_floating(one.type.dtype)) most = std::max(most, element_count(one.type.shape));
  return aligned(static_cast<uint64_t>(most * kBytesOfSortedIndex));
}

}  // namespace stepc
