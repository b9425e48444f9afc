// split_collectives: splits each exchange into its beginning and a wait, so that nodes that need neither its results
// nor its operands' memory may run between them. Data that is reduced is first sent to the rank that reduces it: a
// reduce_scatter becomes an all_to_all and a sum of the parts; an all_reduce becomes these two and an all_gather of the
// sums. Sums are made in the order of ranks, in f32 if the type is narrower, so the bits are those of the blocking
// exchange.
#pragma once

#include <cstdint>

#include "ir/graph.h"

namespace stepc {

// `reduces_on_the_way`: exchanges of these devices reduce, as NCCL's do: a reduce_scatter stays one, and an all_reduce
// becomes a reduce_scatter and an all_gather.
//
// Unchanged: an exchange of fewer than `least_bytes`, a reduction by max or min, and an all_reduce whose operand does
// not have a part for each rank.
Graph split_collectives(const Graph& graph, uint64_t least_bytes, bool reduces_on_the_way = false);

}  // namespace stepc
