// split_collectives: makes of each exchange its beginning and a wait, so that what needs neither its results nor the
// memory of its operands may run between. What is reduced is first sent to where it is reduced: of a reduce_scatter an
// all_to_all and a sum of the parts, of an all_reduce that and an all_gather of the sums. The sums are made in the
// order of ranks, in f32 where the type is narrower: the bits are those of the blocking exchange.
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
