// LoopSpace: the loops of a group's kernel, and for each tensor which of its elements belongs to a point of them. Found
// by following indices through the nodes, from the group's largest tensor, both ways.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "loops/affine.h"

namespace stepc {

// Why a group cannot be one kernel; caught by why_not().
class NoLoops : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// Thrown while indices are followed: the space must be made again with this loop in two.
struct SplitNeeded {
  LoopSplit split;
};

// The sizes of the loops of each dimension of the group's largest tensor: first the dimension itself.
using LoopFactors = std::vector<std::vector<int64_t>>;
LoopFactors domain_factors(const Graph& group);
void split_loop(LoopFactors& factors, const LoopSplit& split);

struct LoopSpace {
  std::vector<int64_t> extents;               // of the loops, outer first; none of extent 1
  std::vector<std::optional<IndexMap>> maps;  // by tensor; every element once over the loops that the map uses

  [[nodiscard]] const IndexMap& map_of(TensorId id) const;  // NoLoops where there is none
};
// Which elements of two tensors belong together: those that nodes connect, or also those of inputs that have the shape
// of the largest tensor and that nothing connects with it.
enum class Together : uint8_t { kConnected, kAlike };
// Throws SplitNeeded.
LoopSpace find_loop_space(const Graph& group, const LoopFactors& factors, Together together);

// The loops that a map uses, ascending.
std::vector<uint32_t> loops_of(const IndexMap& map);

}  // namespace stepc
