// One task is some blocks of 64 queries of one head. A worker packs the keys and values of a head once and keeps them
// while it gets tasks of that head. For each block of queries: scores of 512 keys, online softmax, weights x values.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "blocked/attention.h"
#include "blocked/brgemm.h"
#include "blocked/score_bias.h"
#include "blocked/workspace.h"

namespace stepc::blocked {

namespace {

constexpr int64_t kMostQueries = 64;  // of one block
constexpr int64_t kMostKeys = 512;    // of one block of scores
constexpr int64_t kMostPanel = 64;    // packed keys: panels of so many

struct ForwardSizes {
  int64_t dim, value_dim, keys;  // padded
  int64_t queries;               // of one block
  int64_t block, panel;          // keys of one block of scores, and of one packed panel
  int64_t query_blocks;
};
ForwardSizes forward_sizes(const Attention& call) {
  const int64_t step = call.type == Number::kF32 ? 16 : 32;
  ForwardSizes sizes{};
  sizes.dim = padded_dim(call.type, call.dim);
  sizes.value_dim = round_up(call.value_dim, 16);
  sizes.panel = std::clamp(round_up(call.keys, step), step, kMostPanel);
  sizes.keys = round_up(call.keys, sizes.panel);
  sizes.block = std::clamp(sizes.keys, sizes.panel, kMostKeys);
  sizes.queries = std::clamp<int64_t>(call.queries, 1, kMostQueries);
  sizes.query_blocks = ceil_div(call.queries, kMostQueries);
  return sizes;
}
// Few heads: several tasks a head, so that every thread has work.
int64_t parts_of(const Attention& call, const ForwardSizes& sizes, int threads) {
  const int64_t heads = std::max<int64_t>(1, call.batch * call.heads);
  return std::clamp<int64_t>(ceil_div(4 * threads, heads), 1, std::max<int64_t>(1, sizes.query_blocks));
}
int workers_of(const Attention& call, const ForwardSizes& sizes, int threads) {
  return workers_for(attention_flops(call), call.batch * call.heads * parts_of(call, sizes, threads), threads);
}

template <class T>
struct ForwardScratch {  // of one worker
  T* keys;               // panels of (dim, panel) in pairs
  T* values;             // (keys, value_dim) in pairs
  T* queries;            // (queries, dim)
  float* scores;         // (queries, block)
  T* weights;            // (queries, block); f32 ones replace the scores
  float* total;          // (queries, value_dim)
  float* top;            // (queries)
  float* sum;
  int32_t* begin;
  int32_t* end;
  int64_t* packed_head;  // which batch row and key head `keys` and `values` hold; -1 at first
};

template <class T>
ForwardScratch<T> take_forward_scratch(const ForwardSizes& sizes, Workspace& workspace) {
  ForwardScratch<T> scratch{};
  scratch.keys = workspace.take<T>(sizes.keys * sizes.dim);
  scratch.values = workspace.take<T>(sizes.keys * sizes.value_dim);
  scratch.queries = workspace.take<T>(sizes.queries * sizes.dim);
  scratch.scores = workspace.take<float>(sizes.queries * sizes.block);
  if constexpr (sizeof(T) == sizeof(float)) {
    scratch.weights = scratch.scores;
  } else {
    scratch.weights = workspace.take<T>(sizes.queries * sizes.block);
  }
  scratch.total = workspace.take<float>(sizes.queries * sizes.value_dim);
  scratch.top = workspace.take<float>(sizes.queries);
  scratch.sum = workspace.take<float>(sizes.queries);
  scratch.begin = workspace.take<int32_t>(sizes.queries);
  scratch.end = workspace.take<int32_t>(sizes.queries);
  scratch.packed_head = workspace.take<int64_t>(1);
  return scratch;
}

template <class T>
size_t forward_scratch_bytes(const ForwardSizes& sizes) {
  Workspace workspace(nullptr);
  take_forward_scratch<T>(sizes, workspace);
  return workspace.bytes();
}

template <class T>
class Forward {
 public:
  Forward(const Attention& call, const HeadResult& out, float* logsumexp, const MicroKernels& kernels)
      : call_(call),
        out_(out),
        logsumexp_(logsumexp),
        sizes_(forward_sizes(call)),
        table_(rows_of(kernels.avx512)),
        rows_(table_.of<T>()),
        multiply_(kernels, table_),
        biased_(needs_bias(call)) {}

  void query_block(const ForwardScratch<T>& scratch, int64_t batch, int64_t head, int64_t block) {
    pack_head(scratch, batch, head / (call_.heads / call_.key_heads));
    const int64_t query = block * kMostQueries;
    const int64_t count = std::min(sizes_.queries, call_.queries - query);
    const T* q = static_cast<const T*>(call_.q.data) + head_offset(call_.q.strides, batch, head);
    rows_.copy_rows({count, call_.dim, call_.q.strides.sequence, count, sizes_.dim, sizes_.dim},
                    q + query * call_.q.strides.sequence, scratch.queries);
    visible_keys(call_, query, count, scratch.begin, scratch.end);
    std::fill_n(scratch.top, sizes_.queries, -INFINITY);
    std::fill_n(scratch.sum, sizes_.queries, 0.0F);

    const KeyRange range =
        without_hidden(call_, batch, head, query, count, sizes_.panel, range_of(scratch.begin, scratch.end, count));
    const int64_t first = range.some_begin / sizes_.panel * sizes_.panel;
    if (range.some_begin >= range.some_end) std::fill_n(scratch.total, sizes_.queries * sizes_.value_dim, 0.0F);
    for (int64_t key = first; key < range.some_end; key += sizes_.block) {
      const int64_t keys = std::min(sizes_.block, round_up(range.some_end - key, sizes_.panel));
      key_block(scratch, {batch, head, query, count, key, keys}, key == first);
    }
    finish(scratch, batch, head, query, count);
  }

 private:
  void pack_head(const ForwardScratch<T>& scratch, int64_t batch, int64_t key_head) {
    const int64_t wanted = batch * call_.key_heads + key_head;
    if (*scratch.packed_head == wanted) return;
    *scratch.packed_head = wanted;
    const T* k = static_cast<const T*>(call_.k.data) + head_offset(call_.k.strides, batch, key_head);
    const T* v = static_cast<const T*>(call_.v.data) + head_offset(call_.v.strides, batch, key_head);
    const int64_t ld = call_.k.strides.sequence;
    for (int64_t key = 0; key < sizes_.keys; key += sizes_.panel) {
      const int64_t count = std::min(sizes_.panel, call_.keys - key);
      rows_.transpose_pairs({count, call_.dim, ld, sizes_.panel, sizes_.dim, sizes_.panel}, k + key * ld,
                            scratch.keys + key * sizes_.dim);
    }
    rows_.pairs(
        {call_.keys, call_.value_dim, call_.v.strides.sequence, sizes_.keys, sizes_.value_dim, sizes_.value_dim}, v,
        scratch.values);
  }

  void key_block(const ForwardScratch<T>& scratch, const ScoreBlock& block, bool first) {
    for (int64_t key = 0; key < block.keys; key += sizes_.panel) {
      multiply_({block.queries, sizes_.panel, sizes_.dim}, scratch.queries, sizes_.dim,
                scratch.keys + (block.key + key) * sizes_.dim, sizes_.panel, scratch.scores + key, sizes_.block, false);
    }
    if (biased_) apply_bias(call_, block, false, scratch.scores, sizes_.block);
    SoftmaxTile tile{};
    tile.scores = scratch.scores;
    tile.ld = sizes_.block;
    tile.rows = block.queries;
    tile.columns = block.keys;
    tile.begin = scratch.begin;
    tile.end = scratch.end;
    tile.first_key = static_cast<int32_t>(block.key);
    tile.factor = factor();
    tile.weights = scratch.weights;
    tile.ld_weights = sizes_.block;
    tile.top = scratch.top;
    tile.sum = scratch.sum;
    tile.total = scratch.total;
    tile.ld_total = sizes_.value_dim;
    tile.total_columns = sizes_.value_dim;
    tile.first = first;
    rows_.softmax(tile);
    multiply_({block.queries, sizes_.value_dim, block.keys}, scratch.weights, sizes_.block,
              scratch.values + block.key * sizes_.value_dim, sizes_.value_dim, scratch.total, sizes_.value_dim, !first);
  }

  // exp2(factor x score) is the weight.
  float factor() const { return biased_ ? std::numbers::log2e_v<float> : call_.scale * std::numbers::log2e_v<float>; }

  void finish(const ForwardScratch<T>& scratch, int64_t batch, int64_t head, int64_t query, int64_t count) {
    float* logsumexp = logsumexp_ + (batch * call_.heads + head) * call_.queries + query;
    for (int64_t i = 0; i < count; ++i) {
      const bool empty = scratch.sum[i] == 0;
      const float top = biased_ ? scratch.top[i] : scratch.top[i] * call_.scale;
      logsumexp[i] = empty ? 0.0F : top + std::log(scratch.sum[i]);
      scratch.sum[i] = empty ? 0.0F : 1.0F / scratch.sum[i];
    }
    T* out = static_cast<T*>(out_.data) + head_offset(out_.strides, batch, head) + query * out_.strides.sequence;
    rows_.store_scaled(scratch.total, sizes_.value_dim, count, call_.value_dim, scratch.sum, out,
                       out_.strides.sequence);
  }

  const Attention& call_;
  const HeadResult& out_;
  float* logsumexp_;
  ForwardSizes sizes_;
  RowTable table_;
  const RowKernels<T>& rows_;
  BlockProduct multiply_;
  bool biased_;
};

template <class T>
void run(const Attention& call, const HeadResult& out, float* logsumexp, const MicroKernels& kernels, int threads,
         void* memory) {
  Forward<T> forward(call, out, logsumexp, kernels);
  const ForwardSizes sizes = forward_sizes(call);
  const size_t bytes = forward_scratch_bytes<T>(sizes);
  const auto scratch_of = [&](int worker) {
    Workspace workspace(static_cast<std::byte*>(memory) + static_cast<size_t>(worker) * bytes);
    return take_forward_scratch<T>(sizes, workspace);
  };
  const int workers = workers_of(call, sizes, threads);
  for (int worker = 0; worker < workers; ++worker) *scratch_of(worker).packed_head = -1;
  const int64_t heads = call.batch * call.heads;
  if (heads == 0 || sizes.query_blocks == 0) return;
  const int64_t parts = parts_of(call, sizes, threads);
  for_tasks(kernels, workers, heads * parts, [&](int worker, int64_t task) {
    const ForwardScratch<T> scratch = scratch_of(worker);
    const int64_t head = task / parts;
    for (int64_t block = task % parts; block < sizes.query_blocks; block += parts) {
      forward.query_block(scratch, head / call.heads, head % call.heads, block);
    }
  });
}

}  // namespace

double padding_of_attention(const Attention& call) {
  const ForwardSizes sizes = forward_sizes(call);
  const auto asked = static_cast<double>(std::max<int64_t>(1, call.keys * (call.dim + call.value_dim)));
  return static_cast<double>(sizes.keys * (sizes.dim + sizes.value_dim)) / asked *
         padding_of_diagonal(call, ceil_div(call.queries, kMostPanel));
}

size_t workspace_bytes(const Attention& call, int threads) {
  check_attention(call);
  const ForwardSizes sizes = forward_sizes(call);
  const size_t bytes =
      call.type == Number::kF32 ? forward_scratch_bytes<float>(sizes) : forward_scratch_bytes<Bf16>(sizes);
  return bytes * static_cast<size_t>(workers_of(call, sizes, threads));
}

void attention(const Attention& call, const HeadResult& out, float* logsumexp, const MicroKernels& kernels, int threads,
               void* workspace) {
  check_attention(call);
  if (call.type == Number::kF32) {
    run<float>(call, out, logsumexp, kernels, threads, workspace);
  } else {
    run<Bf16>(call, out, logsumexp, kernels, threads, workspace);
  }
}

}  // namespace stepc::blocked
