// Splits: a sharding piece by piece. A piece with axes is in a dimension, or in a factor of an op's sharding rule
// (ops/rules/sharding_rule.h); these functions convert between the two. Pure functions.
#pragma once

#include <vector>

#include "ir/graph.h"
#include "ops/rules/sharding_rule.h"

namespace stepc {

// A split of dimension (or factor) `at`: its piece, and the number of elements behind each element of the piece.
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
// The dimensions that the splits make.
std::vector<Pieces> pieces_of(const std::vector<Split>& splits, const Shape& sizes, const Mesh& mesh);

// The same splits by the rule's factors: `at` is a factor. `unfit`: the axes of splits that no single factor can take.
struct FactorSplits {
  std::vector<Split> splits;
  std::vector<Axis> unfit;
};
FactorSplits onto_factors(const Sharding& sharding, const Shape& shape, const ShardingRule::Dims& dims,
                          const ShardingRule& rule);
// The way back, for a tensor of the rule; leaves out splits of factors that the tensor does not have.
Sharding from_factors(const std::vector<Split>& splits, const Shape& shape, const ShardingRule::Dims& dims,
                      const ShardingRule& rule, const Mesh& mesh);
bool has_factor(const ShardingRule::Dims& dims, size_t factor);

}  // namespace stepc
