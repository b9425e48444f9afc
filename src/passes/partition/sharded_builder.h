// ShardedBuilder: builds a Graph in which every tensor has a sharding, with the origin and the reason of each split;
// and reshards tensors.
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

// By axis: the origin of a tensor's split along it.
using Origins = std::array<Origin, 8>;

class ShardedBuilder {
 public:
  explicit ShardedBuilder(const Strategy& strategy) : strategy_(strategy) { graph_.mesh = strategy.mesh; }

  TensorId add_input(const GraphInput& input, const TensorType& type, Sharding sharding, const Origins& origins);
  // Later nodes have this source. A new section begins where the step goes from forward to backward, or to another
  // micro-batch.
  void at(const Source& source);
  // Returns the node's outputs, with the given shardings.
  std::vector<TensorId> add(Node node, const std::vector<TensorType>& types, std::vector<Sharding> shardings,
                            const Origins& origins, std::string why);
  void add_output(GraphOutput output) { graph_.outputs.push_back(std::move(output)); }

  [[nodiscard]] const Sharding& sharding(TensorId id) const { return *graph_.tensors[id.index()].sharding; }
  [[nodiscard]] const Origins& origins(TensorId id) const { return origins_[id.index()]; }

  // Returns x with the sharding `to`: a `reshard` of it; or, if `to` only splits x further and x is cheap to compute, x
  // is computed in parts. A reduction happens once. A gather is repeated in another section, because its result would
  // otherwise be kept; it is not repeated along the axes that the strategy keeps, or if the caller sets `keeps`.
  // `sent`: the dtype of the transfer, if not the tensor's own.
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
  size_t section_ = 0;            // the present one: nodes of one phase in a row
  struct Resharded {
    TensorId tensor;
    size_t section = 0;
  };
  std::vector<std::vector<Resharded>> resharded_;  // by tensor
};

}  // namespace stepc
