// C = epilogue(A B) for bf16 and f32 matrices of any strides, sums in f32, blocked for the caches, several products of
// one A in one call. The caller owns every buffer, the workspace included; nothing is allocated. An element's bits
// depend on the shapes alone, not on threads.
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

// Rows to write, elements of a row side by side. Without data, nothing is stored.
struct Result {
  void* data = nullptr;
  Number type = Number::kF32;
  int64_t row_stride = 0;
  int64_t batch_stride = 0;
};

// A finished tile of f32 sums, at (row, column) of a product's result. A tile function may change the values, or use
// them and leave the result without data. Tiles come from several threads at once, in no order.
struct TileRef {
  float* values;
  int64_t ld;
  int64_t product, batch;
  int64_t row, column, rows, columns;
};
using TileFunction = void (*)(const TileRef& tile, void* context);
inline constexpr int64_t kTileRows = 128;  // tiles start at multiples of these
inline constexpr int64_t kTileColumns = 64;

// In this order: sums + residual + accumulate x C, then the tile function, then the store.
struct Epilogue {
  Result residual;  // read
  float accumulate = 0;
  TileFunction tile = nullptr;
  void* context = nullptr;
};

// The tiles of all products at one place; `worker` counts from 0 to threads.
using TilesFunction = void (*)(std::span<const TileRef> tiles, int worker, void* context);

struct Product {
  int64_t n = 0;
  Operand b;  // (k, n); with `packed`, data is what pack_b wrote
  bool packed = false;
  Result c;  // (m, n)
  Epilogue epilogue;
};

struct Matmul {
  Number type = Number::kF32;  // of A and every B
  int64_t batch = 1, m = 0, k = 0;
  Operand a;  // (m, k)
  std::span<const Product> products;
  // With it, products are of one n and have neither results nor epilogues: it alone sees their tiles.
  TilesFunction finish = nullptr;
  void* context = nullptr;
};
inline constexpr size_t kMostProducts = 8;  // of one call

// Reads sizes, strides and types, never data.
size_t workspace_bytes(const Matmul& call, int threads);
void matmul(const Matmul& call, const MicroKernels& kernels, int threads, void* workspace);

// A right operand once and for all: the same buffer serves any m. Padded, so packed_b_bytes >= k x n elements.
size_t packed_b_bytes(Number type, int64_t k, int64_t n);
void pack_b(Number type, int64_t k, int64_t n, const Operand& b, const MicroKernels& kernels, int threads,
            void* packed);
// Writes element (i, j) to out[i * row_stride + j * column_stride].
void unpack_b(Number type, int64_t k, int64_t n, const void* packed, void* out, int64_t row_stride,
              int64_t column_stride);

}  // namespace stepc::blocked
