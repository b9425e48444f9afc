// Which element of a tensor is meant at a point of some loops: an affine form of the loop variables for each dimension.
// Views move such forms; reshapes take them apart, which may ask for a loop in two parts.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace stepc {

struct AffineTerm {
  uint32_t loop = 0;
  int64_t stride = 0;
  auto operator<=>(const AffineTerm&) const = default;
};

struct Affine {
  std::vector<AffineTerm> terms;  // by loop, each loop once, no stride of 0
  int64_t offset = 0;
  auto operator<=>(const Affine&) const = default;

  static Affine constant(int64_t offset) { return {{}, offset}; }
  static Affine of(uint32_t loop, int64_t stride = 1) { return {{{loop, stride}}, 0}; }
  [[nodiscard]] int64_t stride_of(uint32_t loop) const;
  [[nodiscard]] bool uses(uint32_t loop) const { return stride_of(loop) != 0; }
};
Affine operator+(const Affine& a, const Affine& b);
Affine operator*(const Affine& a, int64_t factor);
// The smallest and the largest value; the extents of all loops are at least 1.
struct AffineRange {
  int64_t low = 0, high = 0;
};
AffineRange range_of(const Affine& affine, const std::vector<int64_t>& extents);
// "i0*32 + i1 + 4".
std::string to_text(const Affine& affine);

// One form a dimension.
using IndexMap = std::vector<Affine>;

// A loop to be cut into an outer part and an inner one of `inner` turns.
struct LoopSplit {
  uint32_t loop = 0;
  int64_t inner = 1;
};
// What index a tensor of shape `to` has where one with the same elements in the same order and shape `from` has `map`.
// No value: it is no affine form. Then `split` says which loop to cut so that it becomes one, if that helps.
struct Reshaped {
  std::optional<IndexMap> map;
  std::optional<LoopSplit> split;
};
Reshaped reshaped(const IndexMap& map, const Shape& from, const Shape& to, const std::vector<int64_t>& extents);

// Where the element lies: the dot product with strides.
Affine position_of(const IndexMap& map, const Shape& strides, int64_t offset);

}  // namespace stepc
