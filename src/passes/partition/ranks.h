// Building blocks of one rank's step: the positions of its elements in the whole, and the collectives between two
// shardings.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "ops/graph_builder.h"
#include "passes/partition/shardings/splits.h"

namespace stepc {

class RankBuilder {
 public:
  // `mesh`: the graph input with the rank's coordinates.
  RankBuilder(GraphBuilder& b, TensorId mesh) : b_(b), mesh_input_(mesh) {}

  // For each element of a dimension of `size` with this split, on this rank. places(): its position in the whole, i64;
  // in padding, the position of some element. are_real(): whether it is an element, bool; nullopt if all are.
  TensorId places(const Pieces& pieces, int64_t size);
  std::optional<TensorId> are_real(const Pieces& pieces, int64_t size);
  // Sets this rank's position along an axis to that tensor, i64[].
  void stand_at(Axis axis, TensorId at) { coordinates_[axis] = at; }
  // The places of the rank at `at` along that axis and at this rank's position along the others.
  TensorId places_at(const Pieces& pieces, int64_t size, Axis axis, TensorId at);
  // coordinate(): this rank's position along an axis, i64[]. group(): the attributes that name a group of ranks to a
  // collective.
  TensorId coordinate(Axis axis);
  Attrs group(const std::vector<Axis>& axes);
  // The beginning of this rank's range along the axes of one piece, i64[].
  TensorId begin(const Piece& piece);
  // Whether this rank is the first along these axes, bool[].
  TensorId is_first(const std::vector<Axis>& axes);

  // `x` where `keep` (broadcast along dimension `dim`) is true, else `otherwise`.
  TensorId where_along(TensorId keep, size_t dim, TensorId x, double otherwise);
  // `x` where a bool of its shape, or of one that broadcasts to it, is true, else `otherwise`.
  TensorId where(TensorId keep, TensorId x, double otherwise);

  // The tensor of `shape`, from sharding `from` on the ranks to sharding `to`.
  TensorId reshard(TensorId x, const Shape& shape, const Sharding& from, const Sharding& to);

 private:
  struct Opened;
  const Mesh& mesh() { return b_.graph().mesh; }
  TensorId number(int64_t value) { return b_.full(static_cast<double>(value), DType::kI64); }
  TensorId turning(const Piece& piece, int64_t rows);
  std::pair<TensorId, std::optional<TensorId>> decode(const Pieces& pieces, int64_t size);

  TensorId open(TensorId x, const Shape& shape, const std::vector<Split>& lies, const Split& split, int64_t extent);
  TensorId cut(TensorId x, const Shape& shape, std::vector<Split>& lies, const Split& split);
  TensorId gather(TensorId x, const Shape& shape, std::vector<Split>& lies, const Split& split);
  TensorId scatter(TensorId x, const Shape& shape, std::vector<Split>& lies, const Split& split, ReduceOp op);
  TensorId exchange(TensorId x, const Shape& shape, std::vector<Split>& lies, const Split& from, const Split& to);

  GraphBuilder& b_;
  TensorId mesh_input_;
  std::map<Axis, TensorId> coordinates_;
};

}  // namespace stepc
