// How views move indices: which element of its operand a view's element is, as affine forms. A table row an op.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "loops/affine.h"

namespace stepc {

// low <= value < high.
struct IndexGuard {
  Affine value;
  int64_t low = 0, high = 0;
  auto operator<=>(const IndexGuard&) const = default;
};

struct MovedIndex {
  std::optional<IndexMap> map;     // none: not expressible
  std::optional<LoopSplit> split;  // a loop to cut so that it is
  std::vector<IndexGuard> guards;  // where the operand has such an element
  bool onto = true;                // every element of the operand is meant by some element of the result
};

// Ops whose result is their operands' elements elsewhere, and zeros: views, pad and concat.
bool moves_elements(std::string_view op);
// Where element `map` of the result of `node` lies in its operand `k`.
MovedIndex operand_index(const Graph& graph, const Node& node, size_t k, const IndexMap& map,
                         const std::vector<int64_t>& extents);
// Where element `map` of the operand of a view lies in its result; none for views that drop or repeat elements.
MovedIndex result_index(const Graph& graph, const Node& node, const IndexMap& map, const std::vector<int64_t>& extents);

// The index of an operand of an elementwise op: dimensions count from the right, those of size 1 stand still.
IndexMap broadcast_index(const IndexMap& map, const Shape& operand);

}  // namespace stepc
