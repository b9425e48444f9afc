// Chains: follows a tensor through casts, views and elementwise work: to its parameter, and to readers that cut one of
// its dimensions.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "ops/rules/sharding_rule.h"
#include "passes/partition/shardings/splits.h"

namespace stepc {

// Whether a tensor contains only zeros: one zero, repeated, seen through views.
bool is_zero(const Graph& graph, TensorId tensor);

class Chains {
 public:
  // `graph` must outlive this object.
  explicit Chains(const Graph& graph);

  // The graph input of the parameter from which casts and views, to float8 also scaling, make the tensor.
  [[nodiscard]] std::optional<size_t> parameter_of(TensorId tensor) const;
  // The sharding of that parameter along `axis` if the tensor has the sharding `used`; nullopt if there is no parameter
  // or no such sharding.
  [[nodiscard]] std::optional<std::pair<size_t, Sharding>> seed_of(TensorId tensor, const Sharding& used, Axis axis,
                                                                   const Mesh& mesh) const;
  // How readers cut dimension `dim` of a tensor: the extents of its parts, major first, and which of them may be split.
  struct Part {
    int64_t extent = 1;
    bool splits = true;
  };
  [[nodiscard]] std::vector<Part> parts_of(TensorId tensor, size_t dim) const;

 private:
  // Cuts by the number of elements behind them; and ranges, by their ends, that stay whole.
  struct Cuts {
    std::set<int64_t> at;
    std::vector<std::pair<int64_t, int64_t>> whole;  // from inner to outer
  };
  const std::vector<NodeId>& users_of(TensorId tensor) const;
  const Cuts& cuts_of(TensorId tensor, size_t dim, int depth) const;
  void add_cuts_of_result(const Node& node, const ShardingRule& rule, int factor, int64_t inner, int depth,
                          Cuts& cuts) const;

  const Graph& graph_;
  mutable std::vector<std::vector<NodeId>> users_;  // by tensor; found on the first request
  mutable std::map<std::pair<TensorId, size_t>, Cuts> known_;
};

}  // namespace stepc
