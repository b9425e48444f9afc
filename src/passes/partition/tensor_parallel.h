// The splits of a step's parameters by tensor parallelism, found in the graph and not by names.
#pragma once

#include <optional>

#include "passes/partition/chains.h"
#include "passes/partition/shardings/splits.h"

namespace stepc {

// How tensor parallelism over `ranks` along `axis` would split the parameter of a node that uses all of it: the columns
// of a matmul's weight, the rows of a table. `is_cut`: readers cut the columns, as heads do.
struct TensorParallelSplit {
  Split split;
  bool is_cut = false;
};
// nullopt: not at all.
std::optional<TensorParallelSplit> tensor_parallel_split(const Graph& graph, const Node& node, const ShardingRule& rule,
                                                         Axis axis, int64_t ranks, const Chains& chains);

}  // namespace stepc
