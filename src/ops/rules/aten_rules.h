// The sharding rules of ATen calls that have no row in the op table: opaque nodes, split as data says. A call that no
// row of this table knows is split nowhere.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace stepc {

// One ATen operator. `dims` names the dimensions as DimNames does, of the tensors among its arguments and its results
// in the schema's order, those that a call leaves out too. Dimensions behind the named ones, however many, are not
// split.
struct AtenRule {
  std::string_view op;  // "aten::convolution"
  std::string_view dims;
  // The argument that holds sizes of the first dimension of the first tensor: a number that is that size, or a list
  // that begins with it. A shard's call has the shard's there.
  std::optional<size_t> rows_argument = {};
  // The argument that holds the dimension along which the call goes: that one is not split.
  std::optional<size_t> along_argument = {};
};
std::span<const AtenRule> aten_rules();

// How the dimensions of the call's own operands and results are named; none: no rule, or not of such dimensions.
std::optional<DimNames> aten_dim_names(const Graph& graph, const Node& node);

// The call of a shard, whose operands and results have these shapes: with the shard's sizes in its arguments, and
// strides that fit them. What the call took of the allocator when it was recorded is a bound for its shards.
AtenCall local_aten_call(const Graph& graph, const Node& node, const std::vector<Shape>& operands,
                         const std::vector<Shape>& results);

}  // namespace stepc
