// cut_exchanges: cuts tensor parallelism's exchanges, and the matmuls that wait for them or that they wait for, into
// parts of their rows, so that one part is on its way beside the matmul of another (asynchronous tensor parallelism).
// What is cut stands between matmuls: from a gather through its matmul, and where rows do not meet on the way, as in a
// feed-forward layer, on to the reduction behind the next, and through a norm to the gather behind that. Whatever needs
// all rows reads the parts put together.
//
//   gather   matmul   reduce            one after another
//   gather 1
//   gather 2 matmul 1                   in two parts: each beside a matmul of the other
//            matmul 2 reduce 1
//                     reduce 2
//
// Rows are those of each rank, so every rank sends and holds what it would without parts.
#pragma once

#include <cstdint>

#include "ir/graph.h"

namespace stepc {

// `parts`: 1: nothing is cut. Unchanged: exchanges along other axes than tp, buckets, those whose parts are smaller
// than `least_bytes`, and those whose rows `parts` does not divide.
Graph cut_exchanges(const Graph& graph, int64_t parts, uint64_t least_bytes);

}  // namespace stepc
