// MatmulRule: which matmuls run on the blocked kernel (blocked/), where it beats the library's. Those can share a call,
// and be finished tile by tile where they are made.
#pragma once

#include "ir/graph.h"

namespace stepc {

struct MatmulRule {
  bool bf16 = false, f32 = false;
  int64_t most_transposed_bytes = int64_t{16} << 20;  // of a left operand that lies transposed: it is copied first
  bool operator==(const MatmulRule&) const = default;

  [[nodiscard]] bool takes(DType dtype) const {
    return (dtype == DType::kBF16 && bf16) || (dtype == DType::kF32 && f32);
  }
};

inline constexpr size_t kMostMatmuls = 8;  // that share a call; the blocked kernel takes no more

// Whether `node` is such a matmul where its operands lie contiguous. Of others a group may turn out to have no call;
// its nodes then run one by one.
bool runs_blocked(const Graph& graph, const Node& node, const MatmulRule& rule);

}  // namespace stepc
