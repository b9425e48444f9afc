// The shardings that a Strategy gives to a step's inputs, and to what belongs to them: the seeds of
// propagate_shardings.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "passes/partition/strategy.h"

namespace stepc {

// The origin of a split. If two splits of one axis meet, the origin decides which wins; each axis has its own order.
enum class Origin : uint8_t { kNone, kBatch, kState, kParameter };

struct Seed {
  Sharding sharding;
  Origin origin = Origin::kNone;
};

struct Seeds {
  std::vector<Seed> inputs;  // by graph input
  // By tensor: the sharding of a parameter's gradient, of its optimizer state, and of everything computed from them
  // element by element, once they are whole sums.
  std::vector<std::optional<Sharding>> wanted;
};

// `tensor_parallel`: by graph input, its split by tensor parallelism (as a first propagation finds it), or empty.
// Throws UserError for a rule that matches nothing (with the nearest names) or a dimension that does not exist.
Seeds seeds_of(const Graph& graph, const Strategy& strategy,
               const std::vector<std::optional<Sharding>>& tensor_parallel);

// No tensor is split.
Seeds no_seeds(const Graph& graph);

// Whether `pattern` matches a parameter's key.
bool matches(std::string_view key, std::string_view pattern);

}  // namespace stepc
