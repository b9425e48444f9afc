// What the ranks of a mesh do together: the library's collectives on contiguous memory.
#include <algorithm>

#include "base/check.h"
#include "ir/alignment.h"
#include "kernels/kernel_choice.h"
#include "ops/op_def.h"

namespace stepc {

uint64_t collective_scratch_bytes(std::string_view op, const TensorType& operand) {
  if (op_def(op).collective != Collective::kReduceScatter) return 0;
  const auto size = static_cast<uint64_t>(size_of(operand.dtype));
  return aligned(static_cast<uint64_t>(element_count(operand.shape)) *
                 (is_floating(operand.dtype) ? std::max<uint64_t>(size, sizeof(float)) : size));
}

KernelChoice choose_collective(const Node& node, std::span<const TensorLayout> inputs) {
  const Collective collective = op_def(node.op).collective;
  INTERNAL_CHECK(collective != Collective::kNone && collective != Collective::kReshard,
                 "{} is no collective of a rank's step", node.op);
  KernelChoice choice;
  choice.kind = KernelChoice::Kind::kCollective;
  choice.why = collective == Collective::kReduceScatter
                   ? is_floating(inputs[0].type.dtype) && size_of(inputs[0].type.dtype) <= 4
                         ? "all-to-all, then a sum on each rank in f32"
                         : "all-to-all, then a sum on each rank"
                   : "one call of the library's";
  choice.scratch_bytes = collective_scratch_bytes(node.op, inputs[0].type);
  if (!is_contiguous(inputs[0])) choice.scratch_bytes += aligned(bytes_of(inputs[0]));
  if (collective == Collective::kAllReduce) choice.in_place.emplace_back(0, 0);
  return choice;
}

}  // namespace stepc
