// propagate_shardings: from how the inputs of a step lie on a mesh, how every tensor does. The result is the same step,
// each tensor with its sharding; where an op needs an operand in another way than it lies, a `reshard` stands before
// it.
//
// Nodes are visited in program order. Each operand's splits are offers to split the factor of the op's rule that they
// are on; of those that cannot stand together the one wins that its axis prefers (data axes prefer what comes from the
// batch, tensor parallelism what comes from a parameter), then the one that leaves more bytes where they are. A
// contraction over a split factor makes a partial sum. That passes through what is linear, and becomes whole where
// something is not: as the optimizer state of its parameter lies, or along the sequence, or everywhere.
//
// Tensor parallelism needs no names of layers: a first propagation without it splits each parameter of the forward pass
// where it is used, a matmul's columns or, where the other operand comes from such columns, its rows.
#pragma once

#include <string>
#include <vector>

#include "passes/partition/strategy.h"

namespace stepc {

struct ShardedStep {
  Graph graph;
  std::vector<std::string> why;  // by node of the graph: the reason for its sharding
};
// `graph` is core, for one device. Throws UserError for what the strategy names and the step lacks.
ShardedStep propagate_shardings(const Graph& graph, const Strategy& strategy);
// The same from the shardings of the inputs, in the order of graph.inputs.
ShardedStep propagate_shardings(const Graph& graph, const Mesh& mesh, const std::vector<Sharding>& inputs);

}  // namespace stepc
