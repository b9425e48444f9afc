// softmax(scale q k' + bias) v over blocks of queries and keys, and its gradients. Scores are never stored: forward
// leaves the logsumexp of each row, backward recomputes the weights from it. bf16 or f32 in and out, sums in f32; the
// same inputs give the same bits for any number of threads. The caller owns every buffer; nothing is allocated.
//
// A row that sees no key gives zeros, a logsumexp of 0 and no gradient, as PyTorch's does.
#pragma once

#include <cstddef>
#include <cstdint>

#include "blocked/micro_kernels.h"
#include "blocked/number.h"

namespace stepc::blocked {

// (batch, heads, sequence, dim) in any order of the first three; elements of one head side by side. Strides in
// elements.
struct HeadStrides {
  int64_t batch = 0, head = 0, sequence = 0;
};
struct HeadTensor {
  const void* data = nullptr;
  HeadStrides strides;
};
struct HeadResult {
  void* data = nullptr;
  HeadStrides strides;
};

// A number a token of each batch row; a stride of 0 broadcasts.
struct TokenNumbers {
  const int64_t* data = nullptr;
  int64_t batch_stride = 0, stride = 0;
};
// A query sees the keys of its document whose place is not behind its own; without places, all of its document.
struct AttentionDocuments {
  TokenNumbers of_queries, of_keys;
  TokenNumbers query_places, key_places;
  bool has_places = false;
};

// Added to the scores, or for kBool: what is false is hidden. A stride of 0 broadcasts. Keys that are hidden, by -inf
// or false, from all queries of a block may not be read.
struct AttentionMask {
  enum class Kind : uint8_t { kNone, kBool, kF32, kBf16, kDocuments };
  Kind kind = Kind::kNone;
  const void* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, query_stride = 0, key_stride = 0;
  AttentionDocuments documents = {};  // of kDocuments, instead of all that
};

struct Attention {
  Number type = Number::kF32;
  int64_t batch = 0, heads = 0, key_heads = 0;  // heads / key_heads consecutive heads share one key and value head
  int64_t queries = 0, keys = 0, dim = 0, value_dim = 0;
  float scale = 1;
  // Query i sees keys i - before ... i + after; negative: no limit. Causal is after = 0, a sliding window of w keys
  // before = w - 1.
  int64_t before = -1, after = -1;
  AttentionMask mask;
  HeadTensor q, k, v;
};

// How much more is computed than was asked for: blocks of queries and keys, and the width of a head, are filled up.
double padding_of_attention(const Attention& call);
double padding_of_attention_backward(const Attention& call);
// The length of sequences that are not filled up and take the backward pass as long: the geometric mean of queries and
// keys as they are filled up, or, where one block of the smallest size holds them, as they are.
double length_of_attention_backward(const Attention& call);

size_t workspace_bytes(const Attention& call, int threads);
// `logsumexp` (batch, heads, queries), natural logarithm.
void attention(const Attention& call, const HeadResult& out, float* logsumexp, const MicroKernels& kernels, int threads,
               void* workspace);

struct AttentionGradient {
  HeadTensor gradient;  // of `out`
  HeadTensor out;
  const float* logsumexp = nullptr;
  HeadResult q, k, v;
};

size_t backward_workspace_bytes(const Attention& call, int threads);
void attention_backward(const Attention& call, const AttentionGradient& gradient, const MicroKernels& kernels,
                        int threads, void* workspace);

}  // namespace stepc::blocked
