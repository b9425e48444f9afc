// First every B is packed, and A where it cannot be read as it lies, for all threads; then every task makes the tiles
// of one block of 128 rows and one group of panels. A group of B stays in L2 while the row blocks pass, a tile of C in
// L1.
#include "blocked/matmul.h"

#include <algorithm>

#include "base/check.h"
#include "blocked/brgemm.h"
#include "blocked/packed_operand.h"
#include "blocked/workspace.h"

namespace stepc::blocked {

namespace {

constexpr int64_t kGroupBytes = 512 * 1024;  // of packed B that should stay in L2
constexpr int64_t kDepthBytes = 2048;        // of one row of A in one step of the micro-kernel

// Tiles that are made before any of them is finished.
int64_t tiles_at_once(const Matmul& call) {
  return call.finish == nullptr ? 1 : static_cast<int64_t>(call.products.size());
}
int64_t panels_of(const Product& product) { return ceil_div(product.n, kTileColumns); }

template <class T>
struct Packed {  // where the operands are once packed
  T* a = nullptr;
  std::array<T*, kMostProducts> b = {};
  float* tiles = nullptr;  // of each worker, as many as are made at once
};

// Elements of one tile's sums.
int64_t tile_elements(const Matmul& call) { return std::min(kTileRows, call.m) * kTileColumns; }

// True where the micro-kernel can sum `columns` of a result in C itself: no copy, and stores that the products hide.
bool goes_straight(int64_t columns, const Product& product) {
  return product.c.type == Number::kF32 && columns % 16 == 0 && product.residual.data == nullptr;
}
bool needs_tiles(const Matmul& call) {
  return call.finish != nullptr ||
         std::ranges::any_of(call.products, [](const Product& product) { return !goes_straight(product.n, product); });
}

template <class T>
Packed<T> divide(const Matmul& call, int threads, Workspace& workspace) {
  Packed<T> packed;
  if (!readable_rows<T>(call.a, call.k)) {
    packed.a = workspace.take<T>((call.a.batch_stride == 0 ? 1 : call.batch) * call.m * packed_row_stride<T>(call.k));
  }
  for (size_t p = 0; p < call.products.size(); ++p) {
    const Product& product = call.products[p];
    packed.b[p] = workspace.take<T>((product.b.batch_stride == 0 ? 1 : call.batch) * panels_of(product) *
                                    panel_elements<T>(call.k, product.n));
  }
  if (needs_tiles(call))
    packed.tiles = workspace.take<float>(workers_of(call, threads) * tiles_at_once(call) * tile_elements(call));
  return packed;
}

template <class T>
class Run {
 public:
  Run(const Matmul& call, const MicroKernels& kernels, int threads, void* memory)
      : call_(call),
        kernels_(kernels),
        workers_(workers_of(call, threads)),
        table_(rows_of(kernels.avx512)),
        multiply_(kernels, table_) {
    Workspace workspace(memory);
    packed_ = divide<T>(call, threads, workspace);
  }

  void pack() {
    const int64_t row_blocks = ceil_div(call_.m, kTileRows);
    const int64_t a_tasks = packed_.a == nullptr ? 0 : (call_.a.batch_stride == 0 ? 1 : call_.batch) * row_blocks;
    int64_t tasks = a_tasks;
    for (size_t p = 0; p < call_.products.size(); ++p) tasks += b_tasks(p);
    for_tasks(kernels_, workers_, tasks, [&](int, int64_t task) {
      if (task < a_tasks) return pack_a(task / row_blocks, task % row_blocks);
      task -= a_tasks;
      size_t p = 0;
      for (; task >= b_tasks(p); ++p) task -= b_tasks(p);
      const Product& product = call_.products[p];
      const T* data = static_cast<const T*>(product.b.data) + task / panels_of(product) * product.b.batch_stride;
      pack_panel<T>(table_, product.b, data, call_.k, product.n, task % panels_of(product),
                    packed_.b[p] + task * panel_elements<T>(call_.k, product.n));
    });
  }

  void multiply() {
    int64_t panels = 0;
    for (const Product& product : call_.products) panels += panels_of(product);
    panels /= tiles_at_once(call_);
    const int64_t panel_bytes =
        depth_of<T>(call_.k) * kTileColumns * static_cast<int64_t>(sizeof(T)) * tiles_at_once(call_);
    const int64_t row_blocks = ceil_div(call_.m, kTileRows);
    int64_t group = std::max<int64_t>(1, kGroupBytes / std::max<int64_t>(panel_bytes, 1));
    // Few rows: smaller groups, so that every thread has work. Bits do not depend on groups.
    const int64_t wanted = ceil_div(4 * workers_, std::max<int64_t>(1, row_blocks * call_.batch));
    group = std::clamp<int64_t>(panels / std::max<int64_t>(wanted, 1), 1, group);
    const int64_t groups = ceil_div(panels, group);
    for_tasks(kernels_, workers_, call_.batch * groups * row_blocks, [&](int worker, int64_t task) {
      const int64_t row_block = task % row_blocks;
      const int64_t first = task / row_blocks % groups * group;
      const int64_t batch = task / row_blocks / groups;
      for (int64_t panel = first; panel < std::min(first + group, panels); ++panel) {
        make_tiles(worker, batch, row_block * kTileRows, panel);
      }
    });
  }

 private:
  int64_t b_tasks(size_t p) const {
    const Product& product = call_.products[p];
    return (product.b.batch_stride == 0 ? 1 : call_.batch) * panels_of(product);
  }

  void pack_a(int64_t batch, int64_t row_block) {
    const int64_t row = row_block * kTileRows;
    const T* data = static_cast<const T*>(call_.a.data) + batch * call_.a.batch_stride;
    pack_rows<T>(table_, call_.a, data, call_.k, row, std::min(kTileRows, call_.m - row),
                 packed_.a + (batch * call_.m + row) * packed_row_stride<T>(call_.k));
  }

  // One tile, or those of all products. `panel` counts through all products.
  void make_tiles(int worker, int64_t batch, int64_t row, int64_t panel) {
    float* memory = packed_.tiles;
    if (memory != nullptr) memory += worker * tiles_at_once(call_) * tile_elements(call_);
    size_t p = 0;
    if (call_.finish == nullptr) {
      for (; panel >= panels_of(call_.products[p]); ++p) panel -= panels_of(call_.products[p]);
      make_tile(memory, p, batch, row, panel);
      return;
    }
    std::array<TileRef, kMostProducts> tiles = {};
    for (; p < call_.products.size(); ++p) {
      tiles[p] = tile_at(memory + static_cast<int64_t>(p) * tile_elements(call_), p, batch, row, panel);
      multiply_tile(tiles[p], call_.products[p], false);
    }
    call_.finish({tiles.data(), p}, worker, call_.context);
  }

  TileRef tile_at(float* memory, size_t p, int64_t batch, int64_t row, int64_t panel) const {
    const int64_t column = panel * kTileColumns;
    return {memory,
            kTileColumns,
            static_cast<int64_t>(p),
            batch,
            row,
            column,
            std::min(kTileRows, call_.m - row),
            std::min(kTileColumns, call_.products[p].n - column)};
  }
  void make_tile(float* memory, size_t p, int64_t batch, int64_t row, int64_t panel) {
    const Product& product = call_.products[p];
    TileRef ref = tile_at(memory, p, batch, row, panel);
    if (goes_straight(ref.columns, product)) {
      ref.values = static_cast<float*>(product.c.data) + offset_in(ref, product.c);
      ref.ld = product.c.row_stride;
      multiply_tile(ref, product, product.accumulate);
    } else {
      multiply_tile(ref, product, false);
      finish(ref, product);
    }
  }

  void multiply_tile(const TileRef& ref, const Product& product, bool accumulate) {
    const int64_t lda = packed_.a == nullptr ? call_.a.row_stride : packed_row_stride<T>(call_.k);
    const T* a = nullptr;
    if (packed_.a == nullptr) {
      a = static_cast<const T*>(call_.a.data) + ref.batch * call_.a.batch_stride + ref.row * lda;
    } else {
      a = packed_.a + ((call_.a.batch_stride == 0 ? 0 : ref.batch * call_.m) + ref.row) * lda;
    }
    const int64_t panel =
        ref.column / kTileColumns + (product.b.batch_stride == 0 ? 0 : ref.batch * panels_of(product));
    const T* b = packed_.b[static_cast<size_t>(ref.product)] + panel * panel_elements<T>(call_.k, product.n);
    const int64_t ldb = panel_columns(product.n);
    const int64_t depth = depth_of<T>(call_.k);
    const int64_t steps = std::max<int64_t>(1, ceil_div(depth * static_cast<int64_t>(sizeof(T)), kDepthBytes));
    const int64_t step = round_up(ceil_div(depth, steps), 32);
    // Whole vectors of columns: the padding of B is zeros.
    const int64_t columns = round_up(ref.columns, 16);
    for (int64_t k = 0; k < depth || k == 0; k += std::max<int64_t>(step, 1)) {
      multiply_({ref.rows, columns, std::min(step, depth - k)}, a + k, lda, b + k * ldb, ldb, ref.values, ref.ld,
                accumulate || k > 0);
    }
  }

  void add(const TileRef& ref, const Result& matrix) {
    const int64_t offset = offset_in(ref, matrix);
    if (matrix.type == Number::kF32) {
      table_.f32.add(ref.values, ref.ld, ref.rows, ref.columns, static_cast<const float*>(matrix.data) + offset,
                     matrix.row_stride);
    } else {
      table_.bf16.add(ref.values, ref.ld, ref.rows, ref.columns, static_cast<const Bf16*>(matrix.data) + offset,
                      matrix.row_stride);
    }
  }
  static int64_t offset_in(const TileRef& ref, const Result& matrix) {
    return ref.batch * matrix.batch_stride + ref.row * matrix.row_stride + ref.column;
  }

  void finish(const TileRef& ref, const Product& product) {
    if (product.residual.data != nullptr) add(ref, product.residual);
    if (product.accumulate) add(ref, product.c);
    store(ref, product.c);
  }

  void store(const TileRef& ref, const Result& to) {
    const int64_t offset = offset_in(ref, to);
    if (to.type == Number::kF32) {
      table_.f32.store(ref.values, ref.ld, ref.rows, ref.columns, static_cast<float*>(to.data) + offset, to.row_stride);
    } else {
      table_.bf16.store(ref.values, ref.ld, ref.rows, ref.columns, static_cast<Bf16*>(to.data) + offset, to.row_stride);
    }
  }

  const Matmul& call_;
  const MicroKernels& kernels_;
  int workers_;
  RowTable table_;
  BlockProduct multiply_;
  Packed<T> packed_;
};

template <class T>
void run(const Matmul& call, const MicroKernels& kernels, int threads, void* workspace) {
  Run<T> run(call, kernels, threads, workspace);
  run.pack();
  run.multiply();
}

void check(const Matmul& call) {
  INTERNAL_CHECK(!call.products.empty(), "a matmul without products");
  INTERNAL_CHECK_LE(call.products.size(), kMostProducts, "products of one call");
  INTERNAL_CHECK(call.batch >= 0 && call.m >= 0 && call.k >= 0, "sizes {}, {}, {}", call.batch, call.m, call.k);
  for (const Product& product : call.products) INTERNAL_CHECK_LE(0, product.n);
  if (call.finish == nullptr) return;
  for (const Product& product : call.products) {
    INTERNAL_CHECK_EQ(product.n, call.products[0].n, "products that are finished together are of one width");
    INTERNAL_CHECK(product.c.data == nullptr, "a product with a result of its own is finished elsewhere");
  }
}

}  // namespace

int workers_of(const Matmul& call, int threads) {
  double columns = 0;
  int64_t panels = 0;
  for (const Product& product : call.products) {
    columns += static_cast<double>(product.n);
    panels += panels_of(product);
  }
  const int64_t tasks = call.batch * ceil_div(call.m, kTileRows) * (panels / tiles_at_once(call));
  const double flops =
      2.0 * static_cast<double>(call.batch) * static_cast<double>(call.m) * columns * static_cast<double>(call.k);
  return workers_for(flops, tasks, threads);
}

size_t workspace_bytes(const Matmul& call, int threads) {
  check(call);
  Workspace workspace(nullptr);
  if (call.type == Number::kF32) {
    divide<float>(call, threads, workspace);
  } else {
    divide<Bf16>(call, threads, workspace);
  }
  return workspace.bytes();
}

void matmul(const Matmul& call, const MicroKernels& kernels, int threads, void* workspace) {
  check(call);
  if (call.type == Number::kF32) {
    run<float>(call, kernels, threads, workspace);
  } else {
    run<Bf16>(call, kernels, threads, workspace);
  }
}

}  // namespace stepc::blocked
