// Where tensor parallelism splits a step's parameters, found in the graph and not by names.
#pragma once

#include <optional>

#include "passes/partition/chains.h"
#include "passes/partition/shardings/splits.h"

namespace stepc {

// What a node that uses a parameter as a whole would split of it over `ranks` along `axis`: the columns of a matmul's
// weight, the rows of a table. `is_cut`: what reads the columns cuts them, as heads do.
struct TensorParallelSplit {
  Split split;
  bool is_cut = false;
};
// nullopt: nothing.
std::optional<TensorParallelSplit> tensor_parallel_split(const Graph& graph, const Node& node, const ShardingRule& rule,
                                                         Axis axis, int64_t ranks, const Chains& chains);

}  // namespace stepc
