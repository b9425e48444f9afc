// ChunkedLoss: a linear layer with its cross-entropy on a GPU, a chunk of tokens at a time, as plain data. The logits
// of a chunk lie in scratch memory. Between the library's matmuls one generated kernel computes what their rows lose,
// and writes their gradients in their place.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ir/graph.h"
#include "kernels/matmul_call.h"

namespace stepc {

struct ChunkedLoss {
  int64_t tokens = 1;          // of a chunk
  uint32_t program = 0;        // on the rows of a chunk, as a place in a list of programs
  uint32_t last = kNoProgram;  // on those of the last one, where that is shorter
  bool operator==(const ChunkedLoss&) const = default;
};

// What that kernel computes: (logits, target[, gradient of the loss[, of the sum]]) to (loss, sum of log-probabilities
// [, gradient of the logits]). `operands`: how many those of the node are.
Graph loss_rows(const Attrs& attrs, DType dtype, int64_t tokens, int64_t classes, size_t operands);

}  // namespace stepc
