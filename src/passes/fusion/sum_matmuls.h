// For a GPU: sums that the library's matmul computes with its product. What a matmul's result alone is added to, and is
// then needed no more, becomes the sum in its place (gradients of micro-batches and of shared weights); a row that is
// added to each of its rows becomes its bias, perhaps with a relu behind it, where no generated kernel would do that on
// its way. On other machines a matmul has epilogues of its own (fuse_epilogues.h).
#pragma once

#include "ir/graph.h"

namespace stepc {

Graph sum_matmuls(const Graph& graph);

}  // namespace stepc
