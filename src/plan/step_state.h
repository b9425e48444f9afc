// A program's tensors between steps: parameters, held gradients, optimizer state, buffers.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "ir/graph.h"

namespace stepc {

// Bytes by tensor. Parts of a step share some tensors: merge() counts these once.
using StepState = std::map<std::pair<InputKind, std::string>, uint64_t>;
StepState state_of(const Graph& graph);
uint64_t bytes_of(const StepState& state);

}  // namespace stepc
