#include "kernels/matmul_call.h"

#include <algorithm>
#include <utility>

#include "ir/alignment.h"

namespace stepc {

namespace {

static_assert(kMostMatmuls <= blocked::kMostProducts);

// As it lies or transposed; every row or every column is side by side.
std::optional<blocked::Operand> operand(const TensorLayout& x, bool transposed) {
  if (x.type.shape.size() != 2 || element_count(x.type.shape) == 0) return std::nullopt;
  if (x.strides[0] != 1 && x.strides[1] != 1) return std::nullopt;
  blocked::Operand read{nullptr, x.strides[0], x.strides[1]};
  if (transposed) std::swap(read.row_stride, read.column_stride);
  return read;
}

void finish_nothing(std::span<const blocked::TileRef>, int, void*) {}

}  // namespace

std::optional<BoundMatmul> bind_matmul(const MatmulCall& call, std::span<const TensorLayout> reads,
                                       const Features& features) {
  const MatmulRule rule = matmul_rule(features);
  const TensorLayout& left = reads[call.left];
  const std::optional<blocked::Number> number = number_of(left.type.dtype);
  if (!number || !rule.takes(left.type.dtype)) return std::nullopt;
  const auto a = operand(left, call.transposed);
  if (!a || call.products.size() > blocked::kMostProducts) return std::nullopt;
  if (a->column_stride != 1 && bytes_of(left.type) > rule.most_transposed_bytes) return std::nullopt;
  BoundMatmul bound;
  for (const MatmulCall::Product& product : call.products) {
    const TensorLayout& right = reads[product.right];
    const auto b = operand(right, product.transposed);
    if (!b) return std::nullopt;
    const blocked::Result result{nullptr, *number};
    bound.products.push_back({right.type.shape[product.transposed ? 0 : 1], *b, result});
  }
  const Shape& shape = left.type.shape;
  bound.call = {*number, 1, shape[call.transposed ? 1 : 0], shape[call.transposed ? 0 : 1], *a, bound.products};
  return bound;
}

MatmulScratch scratch_of(const MatmulCall& call, const BoundMatmul& bound, std::span<const LoopProgram> epilogues,
                         int threads) {
  blocked::Matmul matmul = bound.call;
  if (!call.epilogue_programs.empty()) matmul.finish = finish_nothing;  // that tiles are finished together needs room
  MatmulScratch scratch;
  scratch.workers = blocked::workers_of(matmul, threads);
  scratch.matmul_bytes = aligned(blocked::workspace_bytes(matmul, threads));
  for (uint32_t program : call.epilogue_programs)
    if (program != kNoProgram)
      scratch.worker_bytes =
          std::max(scratch.worker_bytes, aligned(static_cast<uint64_t>(epilogues[program].scratch_bytes)));
  const auto shares = static_cast<uint64_t>(std::ranges::count_if(call.epilogue_outputs, &TileBuffer::is_share));
  const auto tiles = static_cast<uint64_t>(blocked::ceil_div(matmul.m, blocked::kTileRows) *
                                           blocked::ceil_div(matmul.products[0].n, blocked::kTileColumns));
  scratch.share_bytes = aligned(shares * tiles * sizeof(float));
  return scratch;
}

}  // namespace stepc
