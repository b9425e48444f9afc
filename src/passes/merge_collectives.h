// merge_collectives: puts neighbouring collectives of one kind, group and dtype together, a bucket at a time: one
// exchange in which all of them are on their way at once, where one after the other each waits for the slowest rank
// anew. Nothing is packed: each operand is sent from where it lies. A bucket is made when it is full, or when a
// collective of its kind needs what it makes; what reads its results waits for it.
#pragma once

#include <cstdint>

#include "ir/graph.h"

namespace stepc {

// A bucket gathers or reduces at most `bucket_bytes`, and at most `share` of everything that its phase of the step
// gathers or reduces, so that the shards of a small model are not gathered all at once; 0: no buckets. Each result has
// the same bits as without buckets.
Graph merge_collectives(Graph graph, uint64_t bucket_bytes, double share);

}  // namespace stepc
