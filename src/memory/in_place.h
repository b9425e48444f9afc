// The memory of each tensor, and the results that may be written over operands. Internal to memory/.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace stepc::memory {

// By tensor: the tensor whose memory holds it (itself, or another one through views), and whether it covers that memory
// in the same order of bytes.
struct Roots {
  std::vector<TensorId> root;
  std::vector<bool> whole;
  [[nodiscard]] TensorId operator[](TensorId id) const { return root[id.index()]; }
};
// `copied`: views with memory of their own, by node; empty: none.
Roots roots_of(const Graph& graph, const std::vector<bool>& copied = {});

// A pair in which element i of `result` is made from element i of `operand` and from single values, and nothing else of
// `operand` is read; or the result is the operand with some elements replaced.
struct InPlace {
  TensorId operand;  // a root
  TensorId result;
};
// For the nodes of one unit, in program order.
std::vector<InPlace> in_place_pairs(const Graph& graph, const Roots& roots, const std::vector<NodeId>& nodes);

}  // namespace stepc::memory
