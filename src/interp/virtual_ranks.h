// Execution on virtual ranks: one op in equal parts along one factor of its sharding rule, put together again. What a
// sharding rule says is right when this equals the whole op.
#pragma once

#include <vector>

#include "interp/array.h"
#include "ops/op_def.h"

namespace stepc {

// Whether each dimension that has the factor has it as its major one and divides into `ranks` parts.
bool can_split(const ShardingRule& rule, int factor, int64_t ranks);

// The part of an array that rank `rank` of `ranks` holds when `factor` is split; the whole array where it has none.
Array shard_of(const Array& whole, const ShardingRule::Dims& dims, int factor, int64_t rank, int64_t ranks);

// Every rank runs the op on its shards; results are concatenated where they have the factor, else combined by its kind.
std::vector<Array> evaluate_sharded(const OpDef& op, const std::vector<Array>& inputs, const Attrs& attrs, int factor,
                                    int64_t ranks);

}  // namespace stepc
