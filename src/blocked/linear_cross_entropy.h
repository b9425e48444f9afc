// Cross-entropy of hidden x weight' against targets, token by token, with its gradients formed in the same sweep: a
// chunk of tokens at a time, so the logits of all tokens never exist, and one logits matmul instead of two. What each
// token's gradient is multiplied by is known before the sweep. bf16 or f32 in, sums in f32. Deterministic for any
// number of threads. The caller owns every buffer.
//
// With logp = log_softmax(hidden weight'): loss[i] = -logp[i][target[i]] and logp_sum[i] = the sum of row i of logp.
// Mean, sum, label smoothing and loss scaling are arithmetic on those two and on their gradients.
#pragma once

#include <cstddef>
#include <cstdint>

#include "blocked/micro_kernels.h"
#include "blocked/number.h"

namespace stepc::blocked {

struct LinearCrossEntropy {
  Number type = Number::kF32;  // of hidden, weight and hidden_gradient
  int64_t tokens = 0, width = 0, classes = 0;
  const void* hidden = nullptr;  // (tokens, width), rows hidden_stride apart
  int64_t hidden_stride = 0;
  const void* weight = nullptr;  // (classes, width), rows weight_stride apart
  int64_t weight_stride = 0;
  const int64_t* targets = nullptr;  // (tokens)
  int64_t ignore_index = -100;
  const float* gradient = nullptr;      // (tokens) of loss[i]; read where the target is not ignored
  const float* sum_gradient = nullptr;  // (tokens) of logp_sum[i]; none: zero

  // Null pointers: not wanted.
  float* loss = nullptr;            // (tokens), 0 where the target is ignored
  float* logp_sum = nullptr;        // (tokens)
  void* hidden_gradient = nullptr;  // (tokens, width)
  int64_t hidden_gradient_stride = 0;
  void* weight_gradient = nullptr;  // (classes, width), side by side
  Number weight_gradient_type = Number::kF32;

  int64_t chunk = 512;  // tokens at a time; the workspace grows with chunk x classes
};

// 512 tokens or all of them: what needs less workspace, as the sums of several chunks need a place in f32.
int64_t frugal_chunk(const LinearCrossEntropy& call);

// Reads sizes, types and which pointers are null, never data.
size_t workspace_bytes(const LinearCrossEntropy& call, int threads);
// Targets must be below `classes` or ignore_index.
void linear_cross_entropy(const LinearCrossEntropy& call, const MicroKernels& kernels, int threads, void* workspace);

}  // namespace stepc::blocked
