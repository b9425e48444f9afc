// ShardedBuilder: a Graph in the making in which every tensor has a sharding, with where each split comes from and why;
// and how a tensor that lies in one way comes to lie in another.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "ops/rules/sharding_rule.h"
#include "passes/partition/seeds.h"

namespace stepc {

// By axis: where a tensor's split along it comes from.
using Origins = std::array<Origin, 8>;

class ShardedBuilder {
 public:
  explicit ShardedBuilder(const Strategy& strategy) : strategy_(strategy) { graph_.mesh = strategy.mesh; }

  TensorId add_input(const GraphInput& input, const TensorType& type, Sharding sharding, const Origins& origins);
  // A node of that source from now on. Where the step goes from forward to backward, or on to another micro-batch, a
  // new stretch begins.
  void at(const Source& source);
  // Gives its outputs, which lie as `shardings` say.
  std::vector<TensorId> add(Node node, const std::vector<TensorType>& types, std::vector<Sharding> shardings,
                            const Origins& origins, std::string why);
  void add_output(GraphOutput output) { graph_.outputs.push_back(std::move(output)); }

  [[nodiscard]] const Sharding& sharding(TensorId id) const { return *graph_.tensors[id.index()].sharding; }
  [[nodiscard]] const Origins& origins(TensorId id) const { return origins_[id.index()]; }

  // x, lying as `to`: a `reshard` of it; or, where that needs no more than cutting what is cheap, it is made in parts.
  // What was reduced is reduced once. What was gathered is gathered again in another stretch, or it would be kept: so
  // it is along the axes that the strategy keeps, and where the caller says so. `sent`: the dtype in which it goes, if
  // not its own.
  TensorId reshard(TensorId x, const Sharding& to, bool keeps = false, std::optional<DType> sent = {});

  Graph take() { return std::move(graph_); }
  std::vector<std::string> take_reasons() { return std::move(why_); }

 private:
  TensorId make_resharded(TensorId x, const Sharding& to);
  std::optional<TensorId> before_repeats(TensorId x, const Sharding& to);
  std::optional<TensorId> in_parts(TensorId x, const Sharding& to);
  TensorId add_like(TensorId x, Node node, const Sharding& to, std::string why);
  TensorId cast(TensorId x, DType dtype);

  [[nodiscard]] bool is_kept(const Sharding& from, const Sharding& to) const;

  const Strategy& strategy_;
  Graph graph_;
  Source source_;
  std::vector<Origins> origins_;  // by tensor
  std::vector<std::string> why_;  // by node
  size_t stretch_ = 0;            // of nodes of one phase in a row
  struct Resharded {
    TensorId tensor;
    size_t stretch = 0;
  };
  std::vector<std::vector<Resharded>> resharded_;  // by tensor
};

}  // namespace stepc
