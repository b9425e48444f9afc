// The gradient of an embedding: rows of the incoming gradient summed into the rows that they were looked up from, in
// the order of the tokens, in f32. Deterministic for any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "blocked/micro_kernels.h"
#include "blocked/number.h"

namespace stepc::blocked {

struct EmbeddingGradient {
  int64_t tokens = 0, rows = 0, width = 0;
  const int64_t* indices = nullptr;  // (tokens), below `rows`
  int64_t padding_row = -1;          // gets no gradient
  Number type = Number::kF32;        // of gradient
  const void* gradient = nullptr;    // (tokens, width), rows gradient_stride apart
  int64_t gradient_stride = 0;
  Number result_type = Number::kF32;
  void* result = nullptr;   // (rows, width), side by side
  bool accumulate = false;  // add to the result; else every row is written
};

size_t workspace_bytes(const EmbeddingGradient& call, int threads);
void embedding_gradient(const EmbeddingGradient& call, const MicroKernels& kernels, int threads, void* workspace);

}  // namespace stepc::blocked
