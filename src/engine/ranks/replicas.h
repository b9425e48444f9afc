// Replicas: whether ranks that hold the same part of a tensor hold the same bits of it. What one machine computes or
// keeps wrongly shows there, and nowhere else before the loss does.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/ranks/sharded_state.h"

namespace stepc {

// Compares hashes of parameters, buffers and optimizer state, between two steps; all ranks call it together. Names the
// first tensor that differs, and the rank: of three and more that hold it the odd one, of two both. The same text on
// every rank; nothing where all agree, or no part is held twice. Reads all that the rank holds once.
std::optional<std::string> find_unlike_replica(const ShardedState& state);

// Of hashes by holder, those that are not the one that most have: all, where none is that of more than half.
std::vector<size_t> odd_ones(std::span<const std::string> hashes);

}  // namespace stepc
