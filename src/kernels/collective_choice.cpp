// What the ranks of a mesh do together, on contiguous memory.
#include "base/check.h"
#include "ir/alignment.h"
#include "ir/rank_parts.h"
#include "kernels/kernel_choice.h"
#include "ops/op_def.h"

namespace stepc {

uint64_t collective_scratch_bytes(std::string_view op, const TensorType& operand, int64_t ranks, bool is_for_gpu) {
  if (is_for_gpu) return 0;  // the library reduces in buffers of its own
  const Collective collective = op_def(op).collective;
  if (collective != Collective::kReduceScatter && collective != Collective::kAllReduce) return 0;
  return aligned(
      reduction_scratch_bytes(element_count(operand.shape), static_cast<uint64_t>(size_of(operand.dtype)), ranks));
}

KernelChoice choose_collective(const Node& node, std::span<const TensorLayout> inputs, bool is_for_gpu) {
  const Collective collective = op_def(node.op).collective;
  KernelChoice choice;
  if (collective == Collective::kWait) {
    choice.kind = KernelChoice::Kind::kWait;
    choice.why = "what the ranks have begun ends here";
    for (uint32_t k = 0; k < node.outputs.size(); ++k) choice.in_place.emplace_back(k, k);
    return choice;
  }
  INTERNAL_CHECK(exchanges(collective), "{} is no collective of a rank's step", node.op);
  choice.kind = KernelChoice::Kind::kCollective;
  const int64_t ranks = node.attrs.get<int64_t>("ranks");
  const bool reduces = collective == Collective::kReduceScatter || collective == Collective::kAllReduce;
  const bool in_f32 = is_floating(inputs[0].type.dtype) && size_of(inputs[0].type.dtype) <= size_of(DType::kF32);
  choice.why = str("from rank to rank{}{}", reduces ? ", each reduces a part" : "", reduces && in_f32 ? " in f32" : "");
  if (inputs.size() > 1) choice.why += str(", {} at once", inputs.size());
  for (uint32_t k = 0; k < inputs.size(); ++k) {
    choice.scratch_bytes += collective_scratch_bytes(node.op, inputs[k].type, ranks, is_for_gpu);
    if (collective == Collective::kAllReduce)
      choice.in_place.emplace_back(k, k);
    else if (!is_contiguous(inputs[k]))
      copy_first(choice, k, inputs[k]);
  }
  return choice;
}

}  // namespace stepc
