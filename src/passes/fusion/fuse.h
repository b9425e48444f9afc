// Puts nodes that can share a kernel into groups of neighbouring nodes: elementwise ops, reductions, reads by index and
// random draws, with the constants and views that they use, which each group copies for itself. Nodes that cannot be
// one kernel (why_no_loops()) never form one; attention and opaque calls stay outside. Matmuls on the blocked kernel
// form groups of their own, which is_matmul_group() distinguishes from kernels: matmuls of one left operand (the
// queries, keys and values of a layer), with cheap elementwise nodes and full sums as epilogues (a bias, the squared
// norm of a gradient). A sum of results that are made one after the other is not one kernel: the kernel would hold all
// of them until the last is made. A graph that has groups is unchanged.
#pragma once

#include <vector>

#include "ir/graph.h"
#include "ops/rules/matmul_rule.h"
#include "passes/fusion/known_groups.h"

namespace stepc {

// `side_by_side`: for a GPU, where launches are saved (passes/fusion/fuse_side_by_side.h).
Graph fuse(Graph graph, const MatmulRule& matmuls = {}, bool side_by_side = false);
// `made_of`, if given: by node of the result, the node of `graph` that it is or that it copies.
Graph fuse(Graph graph, const MatmulRule& matmuls, KnownGroups& known, std::vector<NodeId>* made_of = nullptr,
           bool side_by_side = false);

}  // namespace stepc
