// Sharding: how one tensor lies on the devices of a mesh, as data. Each dimension is a row of pieces, major to minor,
// whose extents multiply to its size; a piece that has axes is split along them, so a minor factor of a flattened
// dimension can be split as well as a major one. Along an axis that no piece names a tensor is repeated, or it is
// partial there: each rank holds a part of it, and the whole is what the parts combine to.
//
//   <8/dp_shard, 16>              rows split over dp_shard
//   <4*16/cp, 32>                 (4 * 16) tokens: each of the 4 rows' 16 split over cp
//   <8, 32> sum(tp)               the sum over the ranks along tp
//   <10/tp/dp_shard, 4>           10 rows split over tp, and each part over dp_shard
//   <2*4/~cp*8, 32>               64 tokens in zig-zag: of 8 chunks rank r along cp has those at r and at 7 - r
//
// A piece of extent e over an axis of n has ceil(e / n) elements a rank; what lies behind e is padding and may hold
// anything. Over several axes that is done axis by axis. Where it divides, a piece is cut so that each axis has a piece
// of its own, as large as the axis (8/dp_shard over 2 ranks is 2/dp_shard * 4): two shardings are equal if and only if
// they place the same elements on the same ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/mesh.h"

namespace stepc {

enum class ReduceOp : uint8_t { kSum, kMax, kMin };
std::string_view name_of(ReduceOp op);
std::optional<ReduceOp> parse_reduce_op(std::string_view name);

struct Piece {
  int64_t extent = 1;
  std::vector<Axis> axes = {};
  // Split over one axis of that extent, the last rank first in every odd row of the whole piece before it, which has an
  // even number of them.
  bool zigzags = false;
  bool operator==(const Piece&) const = default;
};
using Pieces = std::vector<Piece>;  // empty: whole, whatever the size

struct Partial {
  Axis axis = 0;
  ReduceOp op = ReduceOp::kSum;
  bool operator==(const Partial&) const = default;
};

struct Sharding {
  std::vector<Pieces> dims;
  std::vector<Partial> partial = {};  // by axis
  bool operator==(const Sharding&) const = default;

  static Sharding whole(size_t rank) { return {std::vector<Pieces>(rank), {}}; }
  [[nodiscard]] bool is_whole() const;
  // Whether a piece is split along the axis.
  [[nodiscard]] bool splits(Axis axis) const;
  [[nodiscard]] std::optional<ReduceOp> partial_over(Axis axis) const;
  void set_partial(Axis axis, ReduceOp op);
  void clear_partial(Axis axis);
};

// Elements of a piece, and of a dimension of `size`, on one rank.
int64_t local_extent(const Piece& piece, const Mesh& mesh);
int64_t local_extent(const Pieces& pieces, int64_t size, const Mesh& mesh);
std::vector<int64_t> local_shape(const Sharding& sharding, const std::vector<int64_t>& shape, const Mesh& mesh);
// Of a dimension of `size`: where in the whole each of a rank's elements stands, in order; -1 in padding.
std::vector<int64_t> places_of(const Pieces& pieces, int64_t size, const Mesh& mesh, int64_t rank);
// Whether its extent is a multiple of the ranks along its axes: then no rank has padding.
bool is_even(const Piece& piece, const Mesh& mesh);
bool is_even(const Sharding& sharding, const Mesh& mesh);

// Cut where it divides, neighbours that are whole made one, pieces of extent 1 left out; empty when nothing is split.
Pieces canonical(const Pieces& pieces, const Mesh& mesh);

// InternalError unless it fits the shape: a row of pieces a dimension that multiply to its size, canonical; axes of the
// mesh, each in one place; partial axes in order.
void verify(const Sharding& sharding, const std::vector<int64_t>& shape, const Mesh& mesh);

// The text form above; ir/text/graph_text.cpp reads it.
std::string to_text(const Sharding& sharding, const std::vector<int64_t>& shape, const Mesh& mesh);

}  // namespace stepc
