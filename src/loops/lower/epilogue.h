// The epilogue of a group of matmuls: elementwise nodes, and full sums of what they make, that run on each tile of the
// matmuls' results where it is made. An epilogue is a kernel on one tile; the matmuls' sums are its first inputs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "loops/loop_program.h"

namespace stepc {

// How a buffer of the epilogue's kernel moves from tile to tile, in elements a row and a column.
struct TileBuffer {
  uint32_t place = 0;  // among the group's inputs, or its outputs
  int64_t row_stride = 0, column_stride = 0;
  bool is_share = false;  // of an output: a number for each tile, whose sum is the output
  bool operator==(const TileBuffer&) const = default;
};

struct Epilogue {
  Graph tile;                       // of (rows, columns); matmuls first, in f32 and `tile_stride` apart
  std::vector<TileBuffer> inputs;   // behind the matmuls
  std::vector<TileBuffer> outputs;  // all of the group's
};

bool has_epilogue(const Graph& group);  // that is_matmul_group()

// Of a group that is_matmul_group(), for tiles of so many rows and columns; UserError with the reason where it has
// none.
Epilogue epilogue_of(const Graph& group, int64_t rows, int64_t columns, int64_t tile_stride);

// The epilogue as a kernel: what belongs to one place of a tile runs together, whether or not nodes connect it.
LoopProgram lower(const Epilogue& epilogue);

// Why the nodes behind the group's matmuls cannot run tile by tile; empty: they can, or there are none.
std::string why_no_epilogue(const Graph& group);

}  // namespace stepc
