// partition: from a whole step whose tensors have shardings to the step of one rank, the same text for all of them:
// each tensor is the rank's part, a reshard its collectives, and where the rank stands on the mesh is an input. What
// does not divide is padded; before a reduction the padding holds what the reduction leaves as it is.
#pragma once

#include <string>

#include "passes/partition/propagate_shardings.h"

namespace stepc {

// Of propagate_shardings(). The inputs and outputs of the result say what they are parts of.
Graph partition(const Graph& sharded);

// What one rank sends, by kind of collective and axes.
struct Communication {
  std::string op;
  std::vector<Axis> axes;
  size_t count = 0;
  double bytes = 0;
  bool operator==(const Communication&) const = default;
};
// Of one rank's step. Bytes as a ring sends them: (n-1)/n of what an all_gather gives, a reduce_scatter or an
// all_to_all takes, twice that of what an all_reduce does. (Chan et al., Collective communication, 2007.)
std::vector<Communication> communication_of(const Graph& local);
std::string to_text(const std::vector<Communication>& communication, const Mesh& mesh);

}  // namespace stepc
