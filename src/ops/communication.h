// Communication: what the collectives of one rank's step send, with one formula for all who count it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/op_def.h"

namespace stepc {

// Of one collective, or of all of a kind along the same axes.
struct Communication {
  std::string op;
  std::vector<Axis> axes;
  size_t count = 0;
  double hops = 0;     // one after the other, from rank to rank
  double bytes = 0;    // that one rank sends
  double seconds = 0;  // where they are priced (plan/simulate.h)
  bool operator==(const Communication&) const = default;
};

// As a ring does it (Chan et al., Collective communication, 2007). Of n ranks each sends n - 1 times, and in all
// (n - 1)/n of what an all_gather gives, and a reduce_scatter or an all_to_all takes; an all_reduce is twice that.
// A rotate is one send. `operand_bytes`: of all that each rank gives. nullopt: no collective, or a reshard, of which
// nobody knows yet what it is.
std::optional<Communication> communication_of(std::string_view op, const Attrs& attrs, double operand_bytes);
// Sums by op and axes, in their order.
std::vector<Communication> summed(const std::vector<Communication>& all);
// Of one rank's step, summed.
std::vector<Communication> communication_of(const Graph& local);

std::string to_text(const std::vector<Axis>& axes, const Mesh& mesh);  // "dp_shard+tp"
// A table under a line that begins with `head`: kind, axes, count, bytes a rank sends, and time where they are priced.
// "one rank sends nothing" where there is none.
std::string to_text(const std::vector<Communication>& communication, const Mesh& mesh, std::string_view head);

}  // namespace stepc
