// Splits: a sharding seen piece by piece. A piece that has axes stands somewhere in a dimension, or in a factor of an
// op's sharding rule (ops/rules/sharding_rule.h); what is said of the one is carried to the other here. Pure functions.
#pragma once

#include <vector>

#include "ir/graph.h"
#include "ops/rules/sharding_rule.h"

namespace stepc {

// Of a dimension (or factor) `at`: what is split, and how many elements stand behind each of the piece's.
struct Split {
  size_t at = 0;
  Piece piece;
  int64_t inner = 1;
  bool operator==(const Split&) const = default;
};

// The splits of all dimensions, in order.
std::vector<Split> splits_of(const Sharding& sharding, const Shape& shape);
// Whether the pieces of one dimension of `size` can stand beside each other.
bool fit_together(const std::vector<Split>& splits, size_t at, int64_t size);
// The dimensions that they make.
std::vector<Pieces> pieces_of(const std::vector<Split>& splits, const Shape& sizes, const Mesh& mesh);

// The same splits by the rule's factors, `at` being a factor; and the axes of those that no factor has to itself.
struct FactorSplits {
  std::vector<Split> splits;
  std::vector<Axis> unfit;
};
FactorSplits onto_factors(const Sharding& sharding, const Shape& shape, const ShardingRule::Dims& dims,
                          const ShardingRule& rule);
// Back, for a tensor of the rule: splits of factors that it does not have are left out.
Sharding from_factors(const std::vector<Split>& splits, const Shape& shape, const ShardingRule::Dims& dims,
                      const ShardingRule& rule, const Mesh& mesh);
bool has_factor(const ShardingRule::Dims& dims, size_t factor);

}  // namespace stepc
