// Where tensor parallelism splits a step's parameters, found in the graph: which parameter a tensor is, seen through
// casts and views, and where a matmul's columns can be cut so that what follows stays cut.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "ops/sharding_rule.h"
#include "passes/partition/splits.h"

namespace stepc {

class ParameterChains {
 public:
  // `graph` outlives it.
  explicit ParameterChains(const Graph& graph);

  // The graph input of the parameter that a tensor is, but for casts and views.
  [[nodiscard]] std::optional<size_t> parameter_of(TensorId tensor) const;
  // How that parameter lies along `axis` when the tensor lies as `used`; nullopt for no parameter, or none such.
  [[nodiscard]] std::optional<std::pair<size_t, Sharding>> seed_of(TensorId tensor, const Sharding& used, Axis axis,
                                                                   const Mesh& mesh) const;
  // Where dimension `dim` of a tensor is cut by what reads it: the extents of its parts, major first, and which of them
  // may be split.
  struct Part {
    int64_t extent = 1;
    bool splits = true;
  };
  [[nodiscard]] std::vector<Part> parts_of(TensorId tensor, size_t dim) const;

 private:
  // By how many elements stand behind a cut; and the stretches, by their ends, that stay whole.
  struct Cuts {
    std::set<int64_t> at;
    std::vector<std::pair<int64_t, int64_t>> whole;  // from inner to outer
  };
  const Cuts& cuts_of(TensorId tensor, size_t dim, int depth) const;
  void add_cuts_of_result(const Node& node, const ShardingRule& rule, int factor, int64_t inner, int depth,
                          Cuts& cuts) const;

  const Graph& graph_;
  std::vector<std::vector<NodeId>> users_;  // by tensor
  mutable std::map<std::pair<TensorId, size_t>, Cuts> known_;
};

// What a node that uses a parameter as a whole would split of it over `ranks` along `axis`: the columns of a matmul's
// weight, the rows of a table. nullopt: nothing.
std::optional<Split> tensor_parallel_split(const Graph& graph, const Node& node, const ShardingRule& rule, Axis axis,
                                           int64_t ranks, const ParameterChains& chains);

}  // namespace stepc
