// The tokens are sorted by row, stably, by counting; then every row is one sum.
#include "blocked/embedding.h"

#include <algorithm>

#include "base/check.h"
#include "blocked/brgemm.h"
#include "blocked/workspace.h"

namespace stepc::blocked {

namespace {

struct Scratch {
  int32_t* begin;  // (rows + 1): where a row's tokens begin in `order`
  int32_t* order;  // (tokens)
  float* sums;     // (width) for each worker
};
Scratch take_scratch(const EmbeddingGradient& call, int threads, Workspace& workspace) {
  return {workspace.take<int32_t>(call.rows + 1), workspace.take<int32_t>(call.tokens),
          workspace.take<float>(round_up(call.width, 16) * std::max(threads, 1))};
}

void sort_tokens(const EmbeddingGradient& call, const Scratch& scratch) {
  std::fill_n(scratch.begin, call.rows + 1, 0);
  for (int64_t i = 0; i < call.tokens; ++i) ++scratch.begin[call.indices[i]];
  int32_t total = 0;
  for (int64_t row = 0; row < call.rows; ++row) {
    total += scratch.begin[row];
    scratch.begin[row] = total;  // one beyond the row's last, counted down below
  }
  scratch.begin[call.rows] = total;
  for (int64_t i = call.tokens - 1; i >= 0; --i) {
    scratch.order[--scratch.begin[call.indices[i]]] = static_cast<int32_t>(i);
  }
}

template <class T, class R>
void run(const EmbeddingGradient& call, const MicroKernels& kernels, int threads, void* memory) {
  Workspace workspace(memory);
  const Scratch scratch = take_scratch(call, threads, workspace);
  sort_tokens(call, scratch);
  const RowTable table = rows_of(kernels.avx512);
  const int64_t width = call.width;
  const auto sum_row = [&](int64_t row, float* sums) {
    const int32_t* first = scratch.order + scratch.begin[row];
    const int32_t* last = scratch.order + scratch.begin[row + 1];
    if (row == call.padding_row) last = first;
    if (call.accumulate && first == last) return;
    R* out = static_cast<R*>(call.result) + row * width;
    std::fill_n(sums, width, 0.0F);
    for (const int32_t* token = first; token != last; ++token) {
      table.of<T>().add(sums, width, 1, width, static_cast<const T*>(call.gradient) + *token * call.gradient_stride, 0,
                        1);
    }
    if (call.accumulate) table.of<R>().add(sums, width, 1, width, out, 0, 1);
    table.of<R>().store(sums, width, 1, width, out, width);
  };
  constexpr int64_t kRows = 256;
  for_tasks(kernels, threads, ceil_div(call.rows, kRows), [&](int worker, int64_t task) {
    float* sums = scratch.sums + worker * round_up(width, 16);
    for (int64_t row = task * kRows; row < std::min(call.rows, (task + 1) * kRows); ++row) sum_row(row, sums);
  });
}

}  // namespace

size_t workspace_bytes(const EmbeddingGradient& call, int threads) {
  Workspace workspace(nullptr);
  take_scratch(call, threads, workspace);
  return workspace.bytes();
}

void embedding_gradient(const EmbeddingGradient& call, const MicroKernels& kernels, int threads, void* workspace) {
  INTERNAL_CHECK_LT(call.tokens, int64_t{1} << 31, "tokens");
  for (int64_t i = 0; i < call.tokens; ++i) {
    USER_CHECK(call.indices[i] >= 0 && call.indices[i] < call.rows, "index {} of token {} is not a row: there are {}",
               call.indices[i], i, call.rows);
  }
  const bool wide = call.type == Number::kF32;
  const bool wide_result = call.result_type == Number::kF32;
  const auto chosen =
      wide ? (wide_result ? run<float, float> : run<float, Bf16>) : (wide_result ? run<Bf16, float> : run<Bf16, Bf16>);
  chosen(call, kernels, threads, workspace);
}

}  // namespace stepc::blocked
