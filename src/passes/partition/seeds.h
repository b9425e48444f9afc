// What a Strategy says of what enters a step, and of what belongs to it: the seeds of propagate_shardings.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "passes/partition/strategy.h"

namespace stepc {

// Why something is split: what wins where two splits of one axis meet, each axis having its own order.
enum class Origin : uint8_t { kNone, kBatch, kState, kParameter };

struct Seed {
  Sharding sharding;
  Origin origin = Origin::kNone;
};

struct Seeds {
  std::vector<Seed> inputs;  // by graph input
  // By tensor: how a parameter's gradient, its optimizer state and all that is computed of them element by element
  // lie, once they are whole sums.
  std::vector<std::optional<Sharding>> wanted;
};

// `tensor_parallel`: by graph input, how tensor parallelism splits it (as found by a first propagation), or empty.
// UserError for a rule that matches nothing (with the nearest names) or a dimension that is not there.
Seeds seeds_of(const Graph& graph, const Strategy& strategy,
               const std::vector<std::optional<Sharding>>& tensor_parallel);

// Everything whole.
Seeds no_seeds(const Graph& graph);

// The keys of parameters that `pattern` matches.
bool matches(std::string_view key, std::string_view pattern);

}  // namespace stepc
