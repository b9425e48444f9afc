// One task is one key head with the heads that share it, so nothing is summed between threads. Scores are made
// transposed, (keys, queries), because then weights and score gradients are left operands as they are:
//   dv += p' dout     dk += ds' q     dq' += k' ds        (p' and ds' are the transposed tiles)
#include <algorithm>
#include <cmath>
#include <numbers>

#include "blocked/attention.h"
#include "blocked/brgemm.h"
#include "blocked/score_bias.h"
#include "blocked/workspace.h"

namespace stepc::blocked {

namespace {

struct BackwardSizes {
  int64_t block;                          // queries and keys of one tile
  int64_t dim, value_dim, keys, queries;  // padded
};
// Large tiles cost less to call, small ones waste less where the diagonal cuts them. Of short sequences what they pad
// to is a good part of the work, and of the memory.
int64_t smallest_block(Number type) { return type == Number::kF32 ? 16 : 32; }
int64_t block_of(const Attention& call) {
  const int64_t most = std::max<int64_t>({call.queries, call.keys, 1});
  if (most > 128) return std::min(call.queries, call.keys) <= 1024 ? 64 : 128;
  const int64_t step = smallest_block(call.type);
  if (most <= 32) return round_up(most, step);
  int64_t best = 64;
  for (int64_t block = best - step; block >= 32; block -= step)
    if (round_up(most, block) < round_up(most, best)) best = block;
  return best;
}

BackwardSizes backward_sizes(const Attention& call) {
  const int64_t block = block_of(call);
  return {block, padded_dim(call.type, call.dim), padded_dim(call.type, call.value_dim), round_up(call.keys, block),
          round_up(call.queries, block)};
}

int workers_of(const Attention& call, int threads) {
  return workers_for(2.5 * attention_flops(call), call.batch * call.key_heads, threads);
}

template <class T>
struct BackwardScratch {             // of one worker; "blocks" are of BackwardSizes::block
  T* keys;                           // (keys, dim)
  T* values;                         // (keys, value_dim)
  T* keys_transposed;                // blocks of (dim, block)
  T* queries_transposed;             // blocks of (dim, block) in pairs
  T* gradient_transposed;            // blocks of (value_dim, block) in pairs
  T* queries;                        // (queries, dim) in pairs
  T* gradient;                       // (queries, value_dim) in pairs
  float* scores;                     // (block, block)
  float* weight_gradients;           // (block, block)
  T* weights;                        // (block, block); f32 ones replace the scores
  T* score_gradients;                // (block, block); f32 ones replace the weights' gradients
  T* score_gradient_pairs;           // the same in pairs
  float* query_gradient_transposed;  // blocks of (dim, block)
  float* query_gradient;             // (block, dim), when the scores have gone
  float* key_gradient;               // (keys, dim)
  float* value_gradient;             // (keys, value_dim)
  float* logsumexp;                  // (queries)
  float* delta;
  int32_t* begin;  // (queries)
  int32_t* end;
  KeyRange* ranges;  // of each block of queries
};

template <class T>
BackwardScratch<T> take_backward_scratch(const BackwardSizes& s, Workspace& w) {
  BackwardScratch<T> scratch{};
  scratch.keys = w.take<T>(s.keys * s.dim);
  scratch.values = w.take<T>(s.keys * s.value_dim);
  scratch.keys_transposed = w.take<T>(s.keys * s.dim);
  scratch.queries_transposed = w.take<T>(s.queries * s.dim);
  scratch.gradient_transposed = w.take<T>(s.queries * s.value_dim);
  scratch.queries = w.take<T>(s.queries * s.dim);
  scratch.gradient = w.take<T>(s.queries * s.value_dim);
  scratch.scores = w.take<float>(s.block * s.block);
  scratch.weight_gradients = w.take<float>(s.block * s.block);
  if constexpr (sizeof(T) == sizeof(float)) {
    scratch.weights = scratch.scores;
    scratch.score_gradients = scratch.weight_gradients;
    scratch.score_gradient_pairs = scratch.score_gradients;
  } else {
    scratch.weights = w.take<T>(s.block * s.block);
    scratch.score_gradients = w.take<T>(s.block * s.block);
    scratch.score_gradient_pairs = w.take<T>(s.block * s.block);
  }
  scratch.query_gradient_transposed = w.take<float>(s.queries * s.dim);
  scratch.query_gradient = s.dim <= s.block ? scratch.scores : w.take<float>(s.block * s.dim);
  scratch.key_gradient = w.take<float>(s.keys * s.dim);
  scratch.value_gradient = w.take<float>(s.keys * s.value_dim);
  scratch.logsumexp = w.take<float>(s.queries);
  scratch.delta = w.take<float>(s.queries);
  scratch.begin = w.take<int32_t>(s.queries);
  scratch.end = w.take<int32_t>(s.queries);
  scratch.ranges = w.take<KeyRange>(s.queries / s.block);
  return scratch;
}

template <class T>
size_t backward_scratch_bytes(const BackwardSizes& sizes) {
  Workspace workspace(nullptr);
  take_backward_scratch<T>(sizes, workspace);
  return workspace.bytes();
}

template <class T>
class Backward {
 public:
  Backward(const Attention& call, const AttentionGradient& gradient, const MicroKernels& kernels)
      : call_(call),
        gradient_(gradient),
        sizes_(backward_sizes(call)),
        block_(sizes_.block),
        table_(rows_of(kernels.avx512)),
        rows_(table_.of<T>()),
        multiply_(kernels, table_),
        biased_(needs_bias(call)) {}

  void key_head(const BackwardScratch<T>& scratch, int64_t batch, int64_t key_head) {
    pack_keys(scratch, batch, key_head);
    std::fill_n(scratch.key_gradient, sizes_.keys * sizes_.dim, 0.0F);
    std::fill_n(scratch.value_gradient, sizes_.keys * sizes_.value_dim, 0.0F);
    visible_keys(call_, 0, sizes_.queries, scratch.begin, scratch.end);
    const int64_t group = call_.heads / call_.key_heads;
    for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
      for (int64_t i = 0; i < sizes_.queries / block_; ++i) {
        const int64_t query = i * block_;
        scratch.ranges[i] = without_hidden(call_, batch, head, query, std::min(block_, call_.queries - query), block_,
                                           range_of(scratch.begin + query, scratch.end + query, block_));
      }
      pack_queries(scratch, batch, head);
      std::fill_n(scratch.query_gradient_transposed, sizes_.queries * sizes_.dim, 0.0F);
      for (int64_t key = 0; key < sizes_.keys; key += block_) {
        for (int64_t query = 0; query < sizes_.queries; query += block_) {
          const KeyRange& range = scratch.ranges[query / block_];
          if (range.some_end <= key || key + block_ <= range.some_begin) continue;
          const bool masked = range.all_begin > key || range.all_end < key + block_;
          tile(scratch, {batch, head, query, block_, key, block_}, masked);
        }
      }
      store_queries(scratch, batch, head);
    }
    store_rows(gradient_.k, scratch.key_gradient, sizes_.dim, call_.dim, batch, key_head);
    store_rows(gradient_.v, scratch.value_gradient, sizes_.value_dim, call_.value_dim, batch, key_head);
  }

 private:
  static const T* head_of(const HeadTensor& tensor, int64_t batch, int64_t head) {
    return static_cast<const T*>(tensor.data) + head_offset(tensor.strides, batch, head);
  }

  void pack_keys(const BackwardScratch<T>& scratch, int64_t batch, int64_t head) {
    const T* k = head_of(call_.k, batch, head);
    const int64_t ld = call_.k.strides.sequence;
    rows_.copy_rows({call_.keys, call_.dim, ld, sizes_.keys, sizes_.dim, sizes_.dim}, k, scratch.keys);
    rows_.copy_rows(
        {call_.keys, call_.value_dim, call_.v.strides.sequence, sizes_.keys, sizes_.value_dim, sizes_.value_dim},
        head_of(call_.v, batch, head), scratch.values);
    for (int64_t key = 0; key < sizes_.keys; key += block_) {
      const int64_t count = std::min(block_, call_.keys - key);
      rows_.transpose({count, call_.dim, ld, block_, sizes_.dim, block_}, k + key * ld,
                      scratch.keys_transposed + key * sizes_.dim);
    }
  }

  // Both forms of one query-side operand.
  void pack_queries(const HeadTensor& tensor, int64_t batch, int64_t head, int64_t dim, int64_t padded_dim,
                    T* transposed, T* pairs) {
    const T* rows = head_of(tensor, batch, head);
    const int64_t ld = tensor.strides.sequence;
    rows_.pairs({call_.queries, dim, ld, sizes_.queries, padded_dim, padded_dim}, rows, pairs);
    for (int64_t query = 0; query < sizes_.queries; query += block_) {
      const int64_t count = std::min(block_, call_.queries - query);
      rows_.transpose_pairs({count, dim, ld, block_, padded_dim, block_}, rows + query * ld,
                            transposed + query * padded_dim);
    }
  }

  void pack_queries(const BackwardScratch<T>& scratch, int64_t batch, int64_t head) {
    pack_queries(call_.q, batch, head, call_.dim, sizes_.dim, scratch.queries_transposed, scratch.queries);
    pack_queries(gradient_.gradient, batch, head, call_.value_dim, sizes_.value_dim, scratch.gradient_transposed,
                 scratch.gradient);
    rows_.dot_rows(head_of(gradient_.out, batch, head), gradient_.out.strides.sequence,
                   head_of(gradient_.gradient, batch, head), gradient_.gradient.strides.sequence, call_.queries,
                   call_.value_dim, scratch.delta);
    const float* logsumexp = gradient_.logsumexp + (batch * call_.heads + head) * call_.queries;
    const float unit = biased_ ? 1.0F : 1.0F / call_.scale;
    for (int64_t i = 0; i < call_.queries; ++i) scratch.logsumexp[i] = logsumexp[i] * unit;
    std::fill(scratch.delta + call_.queries, scratch.delta + sizes_.queries, 0.0F);
    std::fill(scratch.logsumexp + call_.queries, scratch.logsumexp + sizes_.queries, 0.0F);
  }

  void tile(const BackwardScratch<T>& scratch, const ScoreBlock& block, bool masked) {
    const T* keys = scratch.keys + block.key * sizes_.dim;
    multiply_({block_, block_, sizes_.dim}, keys, sizes_.dim, scratch.queries_transposed + block.query * sizes_.dim,
              block_, scratch.scores, block_, false);
    multiply_({block_, block_, sizes_.value_dim}, scratch.values + block.key * sizes_.value_dim, sizes_.value_dim,
              scratch.gradient_transposed + block.query * sizes_.value_dim, block_, scratch.weight_gradients, block_,
              false);
    if (biased_) apply_bias(call_, block, true, scratch.scores, block_);
    GradientTile tile{};
    tile.scores = scratch.scores;
    tile.weight_gradients = scratch.weight_gradients;
    tile.ld = block_;
    tile.rows = block_;
    tile.columns = block_;
    tile.begin = scratch.begin + block.query;
    tile.end = scratch.end + block.query;
    tile.first_key = static_cast<int32_t>(block.key);
    tile.masked = masked;
    tile.logsumexp = scratch.logsumexp + block.query;
    tile.delta = scratch.delta + block.query;
    tile.factor = biased_ ? std::numbers::log2e_v<float> : call_.scale * std::numbers::log2e_v<float>;
    tile.scale = call_.scale;
    tile.weights = scratch.weights;
    tile.score_gradients = scratch.score_gradients;
    tile.score_gradient_pairs = scratch.score_gradient_pairs;
    rows_.attention_gradient(tile);
    multiply_({block_, sizes_.value_dim, block_}, scratch.weights, block_,
              scratch.gradient + block.query * sizes_.value_dim, sizes_.value_dim,
              scratch.value_gradient + block.key * sizes_.value_dim, sizes_.value_dim, true);
    multiply_({block_, sizes_.dim, block_}, scratch.score_gradients, block_, scratch.queries + block.query * sizes_.dim,
              sizes_.dim, scratch.key_gradient + block.key * sizes_.dim, sizes_.dim, true);
    multiply_({sizes_.dim, block_, block_}, scratch.keys_transposed + block.key * sizes_.dim, block_,
              scratch.score_gradient_pairs, block_, scratch.query_gradient_transposed + block.query * sizes_.dim,
              block_, true);
  }

  void store_queries(const BackwardScratch<T>& scratch, int64_t batch, int64_t head) {
    T* to = static_cast<T*>(gradient_.q.data) + head_offset(gradient_.q.strides, batch, head);
    const int64_t ld = gradient_.q.strides.sequence;
    for (int64_t query = 0; query < call_.queries; query += block_) {
      table_.f32.transpose({sizes_.dim, block_, block_, sizes_.dim, block_, sizes_.dim},
                           scratch.query_gradient_transposed + query * sizes_.dim, scratch.query_gradient);
      rows_.store(scratch.query_gradient, sizes_.dim, std::min(block_, call_.queries - query), call_.dim,
                  to + query * ld, ld);
    }
  }

  void store_rows(const HeadResult& result, const float* values, int64_t ld, int64_t dim, int64_t batch, int64_t head) {
    rows_.store(values, ld, call_.keys, dim, static_cast<T*>(result.data) + head_offset(result.strides, batch, head),
                result.strides.sequence);
  }

  const Attention& call_;
  const AttentionGradient& gradient_;
  BackwardSizes sizes_;
  int64_t block_;
  RowTable table_;
  const RowKernels<T>& rows_;
  BlockProduct multiply_;
  bool biased_;
};

template <class T>
void run(const Attention& call, const AttentionGradient& gradient, const MicroKernels& kernels, int threads,
         void* memory) {
  Backward<T> backward(call, gradient, kernels);
  const BackwardSizes sizes = backward_sizes(call);
  const size_t bytes = backward_scratch_bytes<T>(sizes);
  for_tasks(kernels, workers_of(call, threads), call.batch * call.key_heads, [&](int worker, int64_t task) {
    Workspace workspace(static_cast<std::byte*>(memory) + static_cast<size_t>(worker) * bytes);
    const BackwardScratch<T> scratch = take_backward_scratch<T>(sizes, workspace);
    backward.key_head(scratch, task / call.key_heads, task % call.key_heads);
  });
}

}  // namespace

double padding_of_attention_backward(const Attention& call) {
  const BackwardSizes sizes = backward_sizes(call);
  const double made = static_cast<double>(sizes.queries) * static_cast<double>(sizes.keys) *
                      static_cast<double>(sizes.dim + sizes.value_dim);
  const double asked = static_cast<double>(call.queries) * static_cast<double>(call.keys) *
                       static_cast<double>(call.dim + call.value_dim);
  return made / std::max(1.0, asked) * padding_of_diagonal(call, sizes.queries / sizes.block);
}

double length_of_attention_backward(const Attention& call) {
  const BackwardSizes sizes = backward_sizes(call);
  const bool is_one = std::max(call.queries, call.keys) <= smallest_block(call.type);
  const auto queries = static_cast<double>(is_one ? call.queries : sizes.queries);
  return std::sqrt(queries * static_cast<double>(is_one ? call.keys : sizes.keys));
}

size_t backward_workspace_bytes(const Attention& call, int threads) {
  check_attention(call);
  const BackwardSizes sizes = backward_sizes(call);
  const size_t bytes =
      call.type == Number::kF32 ? backward_scratch_bytes<float>(sizes) : backward_scratch_bytes<Bf16>(sizes);
  return bytes * static_cast<size_t>(workers_of(call, threads));
}

void attention_backward(const Attention& call, const AttentionGradient& gradient, const MicroKernels& kernels,
                        int threads, void* workspace) {
  check_attention(call);
  if (call.type == Number::kF32) {
    run<float>(call, gradient, kernels, threads, workspace);
  } else {
    run<Bf16>(call, gradient, kernels, threads, workspace);
  }
}

}  // namespace stepc::blocked
