// merge_collectives: merges neighbouring collectives of one kind, group and dtype into buckets. A bucket is one
// exchange that transfers all of them at once; one after the other, each would wait for the slowest rank. Nothing is
// packed: each operand is sent from its place. A bucket is made when it is full, or when a collective of its kind needs
// its results; readers of its results wait for it.
#pragma once

#include <cstdint>

#include "ir/graph.h"

namespace stepc {

// A bucket gathers or reduces at most `bucket_bytes`, and at most `share` of everything that its phase of the step
// gathers or reduces, so that the shards of a small model are not gathered all at once; 0: no buckets. Each result has
// the same bits as without buckets.
Graph merge_collectives(Graph graph, uint64_t bucket_bytes, double share);

}  // namespace stepc
