// Building blocks of one rank's step: where its elements stand in the whole, and the collectives between two shardings.
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

  // By element of a dimension of `size` that is split so, on this rank: its place in the whole, i64, in padding that of
  // some element; and whether it is one, bool, nullopt where all are.
  TensorId places(const Pieces& pieces, int64_t size);
  std::optional<TensorId> are_real(const Pieces& pieces, int64_t size);
  // Where along an axis this rank stands is that tensor, i64[].
  void stand_at(Axis axis, TensorId at) { coordinates_[axis] = at; }
  // The places of the rank that stands at `at` along that axis and as this one along the others.
  TensorId places_at(const Pieces& pieces, int64_t size, Axis axis, TensorId at);
  // Where this rank stands along an axis, i64[]; and what names a group of ranks to a collective.
  TensorId coordinate(Axis axis);
  Attrs group(const std::vector<Axis>& axes);
  // Where this rank's stretch along the axes of one piece begins, i64[].
  TensorId begin(const Piece& piece);
  // Whether this rank is the first along these axes, bool[].
  TensorId is_first(const std::vector<Axis>& axes);

  // `x` where `keep` (broadcast along dimension `dim`) is true, else `otherwise`.
  TensorId where_along(TensorId keep, size_t dim, TensorId x, double otherwise);
  // `x` where a bool of its shape, or of one that broadcasts to it, is true, else `otherwise`.
  TensorId where(TensorId keep, TensorId x, double otherwise);

  // The tensor of `shape` that lies as `from` on the ranks, as `to`.
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
