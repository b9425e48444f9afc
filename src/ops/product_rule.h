// ProductRule: which products of matrices run on the blocked kernel (blocked/), where it beats the library's. Those can
// share a call, and be finished tile by tile where they are made.
#pragma once

#include "ir/graph.h"

namespace stepc {

struct ProductRule {
  bool bf16 = false, f32 = false;
  int64_t most_turned_bytes = int64_t{16} << 20;  // of a left operand that lies turned: it is copied first
  bool operator==(const ProductRule&) const = default;

  [[nodiscard]] bool takes(DType dtype) const {
    return (dtype == DType::kBF16 && bf16) || (dtype == DType::kF32 && f32);
  }
};

inline constexpr size_t kMostProducts = 8;  // that share a call; the blocked kernel takes no more

// Whether `node` is such a product where its operands lie contiguous. Of others a group may turn out to have no call;
// its nodes then run one by one.
bool runs_blocked(const Graph& graph, const Node& node, const ProductRule& rule);

}  // namespace stepc
