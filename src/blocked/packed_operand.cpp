#include "blocked/packed_operand.h"

#include <algorithm>

namespace stepc::blocked {

template <class T>
void pack_rows(const RowTable& table, const Operand& a, const T* data, int64_t k, int64_t row, int64_t rows, T* out) {
  const int64_t ld_out = packed_row_stride<T>(k);
  const int64_t depth = depth_of<T>(k);
  const T* from = data + row * a.row_stride;
  if (a.column_stride == 1) {
    table.of<T>().copy_rows({rows, k, a.row_stride, rows, depth, ld_out}, from, out);
  } else if (a.row_stride == 1) {
    table.of<T>().transpose({k, rows, a.column_stride, depth, rows, ld_out}, from, out);
  } else {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < depth; ++j) {
        out[i * ld_out + j] = j < k ? from[i * a.row_stride + j * a.column_stride] : T{};
      }
    }
  }
}

namespace {

// Where element (row, column) of a panel is.
template <class T>
int64_t place_in_panel(int64_t row, int64_t column, int64_t columns) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return row * columns + column;
  } else {
    return row / 2 * 2 * columns + 2 * column + row % 2;
  }
}

}  // namespace

template <class T>
void pack_panel(const RowTable& table, const Operand& b, const T* data, int64_t k, int64_t n, int64_t panel, T* out) {
  const int64_t first = panel * kTileColumns;
  const int64_t columns = std::min(kTileColumns, n - first);
  const int64_t padded = panel_columns(n);
  const int64_t depth = depth_of<T>(k);
  const T* from = data + first * b.column_stride;
  if (b.column_stride == 1) {
    table.of<T>().pairs({k, columns, b.row_stride, depth, padded, padded}, from, out);
  } else if (b.row_stride == 1) {
    table.of<T>().transpose_pairs({columns, k, b.column_stride, padded, depth, padded}, from, out);
  } else {
    for (int64_t i = 0; i < depth; ++i) {
      for (int64_t j = 0; j < padded; ++j) {
        const bool there = i < k && j < columns;
        out[place_in_panel<T>(i, j, padded)] = there ? from[i * b.row_stride + j * b.column_stride] : T{};
      }
    }
  }
}

template void pack_rows(const RowTable&, const Operand&, const float*, int64_t, int64_t, int64_t, float*);
template void pack_rows(const RowTable&, const Operand&, const Bf16*, int64_t, int64_t, int64_t, Bf16*);
template void pack_panel(const RowTable&, const Operand&, const float*, int64_t, int64_t, int64_t, float*);
template void pack_panel(const RowTable&, const Operand&, const Bf16*, int64_t, int64_t, int64_t, Bf16*);

}  // namespace stepc::blocked
