// How operands lie when the micro-kernel reads them: B in panels of 64 columns, or of all of fewer, each (depth,
// columns) in pairs; A in rows. Both are padded with zeros to `depth_of`, and panels to whole vectors of columns.
// Internal to blocked/.
#pragma once

#include <cstdint>

#include "blocked/matmul.h"
#include "blocked/row_kernels.h"

namespace stepc::blocked {

// bf16 in whole tile registers of 32: a ragged depth is far slower, and pairs need an even one.
template <class T>
constexpr int64_t depth_of(int64_t k) {
  return sizeof(T) == sizeof(float) ? k : round_up(k, 32);
}
// Of each panel of a B of n columns.
constexpr int64_t panel_columns(int64_t n) { return n >= kTileColumns ? kTileColumns : round_up(n, 16); }
template <class T>
constexpr int64_t panel_elements(int64_t k, int64_t n) {
  return depth_of<T>(k) * panel_columns(n);
}

// A row stride that does not put every row of a block into the same cache sets.
template <class T>
constexpr int64_t packed_row_stride(int64_t k) {
  constexpr int64_t kLine = 64 / sizeof(T);
  const int64_t lines = ceil_div(depth_of<T>(k), kLine);
  return (lines % 16 == 0 ? lines + 1 : lines) * kLine;
}

// True where the micro-kernel can read A as it lies.
template <class T>
bool readable_rows(const Operand& a, int64_t k) {
  return a.column_stride == 1 && depth_of<T>(k) == k;
}

// Rows [row, row + rows) of A to out, packed_row_stride apart.
template <class T>
void pack_rows(const RowTable& table, const Operand& a, const T* data, int64_t k, int64_t row, int64_t rows, T* out);
// Panel `panel` of B.
template <class T>
void pack_panel(const RowTable& table, const Operand& b, const T* data, int64_t k, int64_t n, int64_t panel, T* out);

}  // namespace stepc::blocked
