// ShardingRule: how one op's dimensions may be split over devices, as data. Dimensions that walk together share a
// factor; splitting a factor splits every dimension that has it. A result without a split factor is partial: each
// device holds a part of it, to be combined as the factor's kind says. A parallel factor is on every result.
//
//   matmul (m, k) x (k, n) -> (m, n)     factors: 0 m parallel, 1 n parallel, 2 k sum
//                                        operands {{0}, {2}} {{2}, {1}}    results {{0}, {1}}
//   reshape (6, 4) -> (2, 3, 4)          factors: 0 of 2, 1 of 3, 2 of 4
//                                        operands {{0, 1}, {2}}            results {{0}, {1}, {2}}
//
//   slice (12) -> (4)                    factors: 0 of 3 whole, 1 of 4
//                                        operands {{0, 1}}                 results {{1}}
//
// A dimension lists its factors from major to minor. One without factors is never split, nor is a whole factor, which
// says only where the others are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace stepc {

struct Factor {
  enum class Kind : uint8_t { kParallel, kSum, kMax, kMin, kWhole };
  int64_t size = 1;
  Kind kind = Kind::kParallel;
  bool operator==(const Factor&) const = default;
};

struct ShardingRule {
  using Dims = std::vector<std::vector<int>>;  // factors of each dimension
  std::vector<Factor> factors;
  std::vector<Dims> operands;
  std::vector<Dims> results;
  // A factor whose places operand `indices` chooses: a rank that holds some of them subtracts where they begin, and
  // what is chosen elsewhere counts as 0, in the result of a read (a sum) and in operand `values` of a write.
  struct Indexed {
    int factor = 0;
    size_t indices = 0;
    std::optional<size_t> values = {};
    bool operator==(const Indexed&) const = default;
  };
  std::optional<Indexed> indexed = {};
  // Of attention, the factor of the heads that share keys: where the sequence is split it may be split instead.
  std::optional<int> heads = {};
  // The operand that a sum counts once, whatever of the rest is split.
  std::optional<size_t> once = {};
  // The dimension of the result along which values count places (iota).
  std::optional<size_t> counts = {};
  // The optional operand that tells each element of a split draw its place in the whole one.
  std::optional<size_t> numbered = {};
  bool operator==(const ShardingRule&) const = default;

  // Room for operands and results of these types, no factors yet.
  static ShardingRule whole(const std::vector<TensorType>& operands, const std::vector<TensorType>& results);
  int add(int64_t size, Factor::Kind kind = Factor::Kind::kParallel);
  // A new factor of `size` on dimension `d` of operand `i`, and so on.
  void on_operand(int factor, size_t i, size_t d) { operands[i][d].push_back(factor); }
  void on_result(int factor, size_t i, size_t d) { results[i][d].push_back(factor); }
};
std::string to_text(const ShardingRule& rule);

// Operands broadcast to the results, dimension by dimension from the right.
ShardingRule elementwise_rule(const std::vector<TensorType>& operands, const std::vector<TensorType>& results);
// One operand and one result with the same elements in the same order.
ShardingRule reshape_rule(const TensorType& operand, const TensorType& result);
// Every tensor shares the leading dimensions except those listed (negative from the end); sizes must agree.
ShardingRule same_dims_rule(const std::vector<TensorType>& operands, const std::vector<TensorType>& results,
                            const std::vector<int64_t>& except);
// As the program has named the dimensions. A dimension of one element where others of its name have more is whole, as
// operands are that broadcast. Throws UserError where ranks or sizes do not fit.
ShardingRule named_rule(const DimNames& dims, const std::vector<TensorType>& operands,
                        const std::vector<TensorType>& results);

// Of any node: its row's; of an ATen call what the program says of its own operator, or what is known of ATen's
// (ops/rules/aten_rules.h). Without any nothing may be split.
ShardingRule sharding_rule_of(const Graph& graph, const Node& node);

}  // namespace stepc
