// Cross-entropy of hidden x weight' against targets, with its gradients formed in the same sweep: a chunk of tokens at
// a time, so the logits of all tokens never exist, and one logits product instead of two. bf16 or f32 in, sums,
// weights' gradient and loss in f32. Deterministic for any number of threads. The caller owns every buffer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "blocked/micro_kernels.h"
#include "blocked/number.h"

namespace stepc::blocked {

struct LinearCrossEntropy {
  Number type = Number::kF32;  // of hidden and weight
  int64_t tokens = 0, width = 0, classes = 0;
  const void* hidden = nullptr;  // (tokens, width), rows hidden_stride apart
  int64_t hidden_stride = 0;
  const void* weight = nullptr;  // (classes, width), rows weight_stride apart
  int64_t weight_stride = 0;
  const int64_t* targets = nullptr;  // (tokens)
  int64_t ignore_index = -100;
  float label_smoothing = 0;
  bool mean = true;     // over the tokens that are not ignored (NaN when all are, as in PyTorch), else the sum
  int64_t chunk = 512;  // tokens at a time; the workspace grows with chunk x classes
};

// Null pointers: not wanted.
struct LinearCrossEntropyResult {
  float* loss = nullptr;            // one number
  float scale = 1;                  // what the gradients are multiplied by: the gradient of the loss
  void* hidden_gradient = nullptr;  // (tokens, width) in the type of hidden
  int64_t hidden_gradient_stride = 0;
  float* weight_gradient = nullptr;  // (classes, width), side by side
  bool accumulate = false;           // add to weight_gradient instead of writing it
};

size_t workspace_bytes(const LinearCrossEntropy& call, int threads);
// Targets must be below `classes` or ignore_index.
void linear_cross_entropy(const LinearCrossEntropy& call, const LinearCrossEntropyResult& result,
                          const MicroKernels& kernels, int threads, void* workspace);

}  // namespace stepc::blocked
