// propagate_shardings: from the shardings of a step's inputs on a mesh to those of all its tensors. The result is the
// same step, each tensor with its sharding; a `reshard` stands before an op that needs an operand with another
// sharding.
//
// Visits nodes in program order. Each split of an operand offers to split its factor of the op's rule. If offers
// conflict, the one that its axis prefers wins (data axes prefer splits that come from the batch, tensor parallelism
// those that come from a parameter), then the one that leaves more bytes in place. A contraction over a split factor
// makes a partial sum. Linear ops pass partial sums through. Before any other op the sum becomes whole: with the
// sharding of its parameter's optimizer state, or along the sequence, or everywhere.
//
// Tensor parallelism needs no names of layers: a first propagation without it splits each parameter of the forward pass
// at its use, a matmul's columns or, if the other operand comes from such columns, its rows.
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
