// Replicas: ranks that hold the same part of a tensor. They show whether they hold the same bits: a machine that
// computes or stores wrong values is visible there, and elsewhere only in the loss. And what the replacement of a lost
// rank takes from the others.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/ranks/sharded_state.h"

namespace stepc {

// Compares hashes of parameters, buffers and optimizer state, between two steps; all ranks call it together. Names the
// first tensor that differs, and the rank: of three and more that hold it the odd one, of two both. The same text on
// every rank; nothing where all agree, or no part is held twice. Reads all that the rank holds once.
std::optional<std::string> find_unlike_replica(const ShardedState& state);

// Parameters, buffers and optimizer state of ranks of which some have kept theirs (`kept`; none: this one has not):
// they go on with these tensors, and send the others what these hold alike. `ranks`: of the run, of which state.ranks()
// may be a stage; all call it together. False on all of them, and nothing is changed, where nobody has kept some part.
using KeptParts = std::map<std::pair<Owner, std::string>, at::Tensor>;
bool complete_from_replicas(ShardedState& state, Ranks& ranks, const KeptParts* kept);

// Of hashes by holder, those that are not the one that most have: all, where none is that of more than half.
std::vector<size_t> odd_ones(std::span<const std::string> hashes);

}  // namespace stepc
