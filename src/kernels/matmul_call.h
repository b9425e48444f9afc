// MatmulCall: products of one left operand, with what finishes them tile by tile, as one call of the blocked kernel; as
// plain data.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "blocked/matmul.h"
#include "cost/features.h"
#include "kernels/tensor_layout.h"
#include "loops/lower/epilogue.h"

namespace stepc {

// Places count among what the call reads, and what it writes.
struct MatmulCall {
  struct Product {
    uint32_t right = 0;
    bool transposed = false;
    bool operator==(const Product&) const = default;
  };
  uint32_t left = 0;
  bool transposed = false;  // the left operand
  std::vector<Product> products = {};
  // Kernels on a tile of the products' results, which they finish; by tile_kind(), as places in a list of programs.
  // Empty: product p is write p. kNoProgram: no tile is of that kind.
  std::vector<uint32_t> epilogue_programs = {};
  std::vector<TileBuffer> epilogue_inputs = {}, epilogue_outputs = {};
  bool operator==(const MatmulCall&) const = default;
};
inline constexpr uint32_t kNoProgram = UINT32_MAX;

// Tiles are whole (0), cut in rows (1), in columns (2), or in both (3).
inline constexpr size_t kTileKinds = 4;
inline size_t tile_kind(bool whole_rows, bool whole_columns) {
  return (whole_rows ? 0U : 1U) + (whole_columns ? 0U : 2U);
}

// The call on operands that lie so, without data. nullopt: the blocked kernel does not take them, or not on a machine
// with these features. `products` has one entry a product and is what the Matmul's span points to.
struct BoundMatmul {
  BoundMatmul() = default;
  BoundMatmul(BoundMatmul&&) = default;  // a copy's span would point to the original
  BoundMatmul& operator=(BoundMatmul&&) = default;
  blocked::Matmul call;
  std::vector<blocked::Product> products;
};
std::optional<BoundMatmul> bind_matmul(const MatmulCall& call, std::span<const TensorLayout> reads,
                                       const Features& features);

// The pieces of its scratch memory, in this order; each a multiple of 64 bytes.
struct MatmulScratch {
  uint64_t matmul_bytes = 0;
  uint64_t worker_bytes = 0;  // of each worker, for the epilogue's kernels
  int workers = 1;
  uint64_t share_bytes = 0;  // of the tiles' shares of sums
  [[nodiscard]] uint64_t bytes() const {
    return matmul_bytes + static_cast<uint64_t>(workers) * worker_bytes + share_bytes;
  }
};
// `epilogues`: the programs that the call's epilogue_programs count.
MatmulScratch scratch_of(const MatmulCall& call, const BoundMatmul& bound, std::span<const LoopProgram> epilogues,
                         int threads);

}  // namespace stepc
