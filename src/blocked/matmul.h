// C = A B for bf16 and f32 matrices of any strides, sums in f32, blocked for the caches, several products of one A in
// one call. The caller owns every buffer, the workspace included; nothing is allocated. An element's bits depend on the
// shapes alone, not on threads.
//
//   const Product products[] = {{.n = 768, .b = {weight, 1, 768}, .c = {out, Number::kBf16, 768}}};
//   const Matmul call = {.type = Number::kBf16, .m = 2048, .k = 768, .a = {x, 768, 1}, .products = products};
//   matmul(call, kernels, threads, workspace);  // workspace_bytes(call, threads), 64-byte aligned
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "blocked/micro_kernels.h"
#include "blocked/number.h"

namespace stepc::blocked {

// A matrix to read; strides in elements, so a transpose swaps two of them. Batch stride 0: one matrix for all.
struct Operand {
  const void* data = nullptr;
  int64_t row_stride = 0;
  int64_t column_stride = 1;
  int64_t batch_stride = 0;
};

// Rows to write, elements of a row side by side.
struct Result {
  void* data = nullptr;
  Number type = Number::kF32;
  int64_t row_stride = 0;
  int64_t batch_stride = 0;
};

// A finished tile of f32 sums, at (row, column) of a product's result. Tiles come from several threads at once, in
// no order.
struct TileRef {
  float* values;
  int64_t ld;
  int64_t product, batch;
  int64_t row, column, rows, columns;
};
inline constexpr int64_t kTileRows = 128;  // tiles start at multiples of these
inline constexpr int64_t kTileColumns = 64;

// The tiles of all products at one place; `worker` counts from 0 to threads.
using TilesFunction = void (*)(std::span<const TileRef> tiles, int worker, void* context);

struct Product {
  int64_t n = 0;
  Operand b = {};           // (k, n)
  Result c = {};            // (m, n); its type, and whether there is a residual, decide sizes too
  Result residual = {};     // read, and added to the sums before they are stored
  bool accumulate = false;  // add to what C holds
};

struct Matmul {
  Number type = Number::kF32;  // of A and every B
  int64_t batch = 1, m = 0, k = 0;
  Operand a;  // (m, k)
  std::span<const Product> products;
  // With it, products are of one n and have no results: it alone sees their tiles.
  TilesFunction finish = nullptr;
  void* context = nullptr;
};
inline constexpr size_t kMostProducts = 8;  // of one call

// Workers that make tiles of the call.
int workers_of(const Matmul& call, int threads);
// Reads sizes, strides and types, never data.
size_t workspace_bytes(const Matmul& call, int threads);
void matmul(const Matmul& call, const MicroKernels& kernels, int threads, void* workspace);

}  // namespace stepc::blocked
