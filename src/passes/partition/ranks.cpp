#include "passes/partition/ranks.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace stepc {

namespace {
int64_t product(const Shape& shape, size_t begin, size_t end) {
  return std::accumulate(shape.begin() + static_cast<ptrdiff_t>(begin), shape.begin() + static_cast<ptrdiff_t>(end),
                         int64_t{1}, std::multiplies<>());
}
// The extent of a piece before its first axis, after it, after the second, and so on.
std::vector<int64_t> extents_of(const Piece& piece, const Mesh& mesh) {
  std::vector<int64_t> extents = {piece.extent};
  for (Axis axis : piece.axes) extents.push_back(local_extent({extents.back(), {axis}}, mesh));
  return extents;
}
}  // namespace

TensorId RankBuilder::coordinate(Axis axis) {
  const auto [known, is_new] = coordinates_.try_emplace(axis);
  if (is_new) known->second = b_.reshape(b_.slice(mesh_input_, {static_cast<int64_t>(axis)}, {1}, {1}), {});
  return known->second;
}

TensorId RankBuilder::begin(const Piece& piece) {
  const std::vector<int64_t> extents = extents_of(piece, mesh());
  std::optional<TensorId> sum;
  for (size_t a = 0; a < piece.axes.size(); ++a) {
    TensorId part = coordinate(piece.axes[a]);
    if (extents[a + 1] != 1) part = b_.add("mul", {part, number(extents[a + 1])});
    sum = sum ? b_.add("add", {*sum, part}) : part;
  }
  return sum ? *sum : number(0);
}

TensorId RankBuilder::is_first(const std::vector<Axis>& axes) {
  std::optional<TensorId> all;
  for (Axis axis : axes) {
    const TensorId one = b_.add("eq", {coordinate(axis), number(0)});
    all = all ? b_.add("logical_and", {*all, one}) : one;
  }
  return *all;
}

// Of a piece in zig-zag, this rank's place in each row, (rows, 1).
TensorId RankBuilder::turning(const Piece& piece, int64_t rows) {
  const TensorId at = coordinate(piece.axes[0]);
  const Attrs counted = {{"shape", Shape{rows, 1}}, {"dtype", DType::kI64}, {"dim", int64_t{0}}};
  const TensorId is_odd = b_.add("ne", {b_.add("remainder", {b_.add("iota", {}, counted), number(2)}), number(0)});
  return b_.add("where", {is_odd, b_.add("sub", {number(piece.extent - 1), at}), at});
}

std::pair<TensorId, std::optional<TensorId>> RankBuilder::decode(const Pieces& pieces, int64_t size) {
  const auto count = [&](int64_t n) {
    return b_.add("iota", {}, {{"shape", Shape{n}}, {"dtype", DType::kI64}, {"dim", int64_t{0}}});
  };
  if (pieces.empty()) return {count(size), std::nullopt};
  std::optional<TensorId> places, real;
  int64_t inner = size;
  for (const Piece& piece : pieces) {
    inner /= piece.extent;
    const std::vector<int64_t> extents = extents_of(piece, mesh());
    const int64_t here = extents.back();
    // The earlier pieces are rows of which each has `here` elements.
    const int64_t rows = places ? b_.shape(*places)[0] : 1;
    TensorId place = piece.zigzags ? turning(piece, rows) : count(here);
    std::optional<TensorId> is_real;
    for (size_t a = piece.zigzags ? 0 : piece.axes.size(); a-- > 0;) {
      TensorId offset = coordinate(piece.axes[a]);
      if (extents[a + 1] != 1) offset = b_.add("mul", {offset, number(extents[a + 1])});
      place = b_.add("add", {place, offset});
      if (extents[a] % mesh().size(piece.axes[a]) == 0) continue;
      const TensorId inside = b_.add("lt", {place, number(extents[a])});
      is_real = is_real ? b_.add("logical_and", {*is_real, inside}) : inside;
      place = b_.add("minimum", {place, number(extents[a] - 1)});
    }
    if (inner != 1) place = b_.add("mul", {place, number(inner)});
    const auto under = [&](TensorId x) { return b_.reshape(x, {rows, 1}); };
    const auto flat = [&](TensorId x) { return b_.reshape(b_.expand(x, {rows, here}), {rows * here}); };
    if (real || is_real) {
      const TensorId all_real = b_.full(1, DType::kBool, {});
      const TensorId left = real ? under(*real) : all_real;
      real = flat(b_.add("logical_and", {left, is_real ? *is_real : all_real}));
    }
    places = places ? flat(b_.add("add", {under(*places), place})) : place;
  }
  return {*places, real};
}

TensorId RankBuilder::places(const Pieces& pieces, int64_t size) { return decode(pieces, size).first; }
TensorId RankBuilder::places_at(const Pieces& pieces, int64_t size, Axis axis, TensorId at) {
  const TensorId own = std::exchange(coordinates_.at(axis), at);
  const TensorId there = places(pieces, size);
  coordinates_.at(axis) = own;
  return there;
}
std::optional<TensorId> RankBuilder::are_real(const Pieces& pieces, int64_t size) {
  for (const Piece& piece : pieces)
    if (!is_even(piece, mesh())) return decode(pieces, size).second;
  return std::nullopt;
}

TensorId RankBuilder::where(TensorId keep, TensorId x, double otherwise) {
  return b_.add("where", {keep, x, b_.full(otherwise, b_.dtype(x))});
}
TensorId RankBuilder::where_along(TensorId keep, size_t dim, TensorId x, double otherwise) {
  Shape shape(b_.shape(x).size(), 1);
  shape[dim] = b_.shape(keep)[0];
  return where(b_.reshape(keep, shape), x, otherwise);
}

Attrs RankBuilder::group(const std::vector<Axis>& axes) {
  return {{"axes", Shape(axes.begin(), axes.end())}, {"ranks", mesh().size(axes)}};
}

// ---- from one sharding to another

namespace {
Shape local_shape_of(const Shape& shape, const std::vector<Split>& lies, const Mesh& mesh) {
  return local_shape({pieces_of(lies, shape, mesh), {}}, shape, mesh);
}
}  // namespace

// x, which lies as `lies`, as [elements before, extent, elements behind] around the piece of `split`, of which this
// rank has `extent`.
TensorId RankBuilder::open(TensorId x, const Shape& shape, const std::vector<Split>& lies, const Split& split,
                           int64_t extent) {
  int64_t inner = split.inner;
  for (const Split& other : lies)
    if (other.at == split.at && other.inner < split.inner)
      inner = inner / other.piece.extent * local_extent(other.piece, mesh());
  const Shape local = local_shape_of(shape, lies, mesh());
  const int64_t before = product(local, 0, split.at);
  const int64_t behind = product(local, split.at + 1, local.size());
  const int64_t outer = extent * inner == 0 ? 0 : local[split.at] / (extent * inner);
  return b_.reshape(x, {before * outer, extent, inner * behind});
}

namespace {
// [rows, extent, behind] with every odd row backwards: there a piece in zig-zag is one like any other, and the other
// way round.
TensorId turned(GraphBuilder& b, TensorId x, const Piece& piece) {
  if (!piece.zigzags) return x;
  const Shape shape = b.shape(x);
  const int64_t pairs = shape[0] / 2;
  const Shape half = {pairs, 1, shape[1], shape[2]};
  const TensorId rows = b.reshape(x, {pairs, 2, shape[1], shape[2]});
  const TensorId odd = b.slice(rows, {0, 1, 0, 0}, half, {1, 1, 1, 1});
  const TensorId back = b.add("reverse", {odd}, {{"dims", Shape{2}}});
  const TensorId even = b.slice(rows, {0, 0, 0, 0}, half, {1, 1, 1, 1});
  return b.reshape(b.add("concat", {even, back}, {{"dim", int64_t{1}}}), shape);
}
}  // namespace

// A whole piece is split: each rank keeps its range.
TensorId RankBuilder::cut(TensorId x, const Shape& shape, std::vector<Split>& lies, const Split& split) {
  const TensorId opened = turned(b_, open(x, shape, lies, split, split.piece.extent), split.piece);
  const Piece piece = {split.piece.extent, split.piece.axes};
  TensorId places = this->places({piece}, piece.extent);
  const TensorId kept = b_.add("take", {opened, places}, {{"dim", int64_t{1}}});
  lies.push_back(split);
  return b_.reshape(kept, local_shape_of(shape, lies, mesh()));
}

namespace {
// [rows, extent, behind] as one part a rank, [ranks, rows, local, behind], padded where it does not divide.
TensorId into_parts(GraphBuilder& b, TensorId x, const Piece& piece, const Mesh& mesh) {
  const Shape shape = b.shape(x);
  const std::vector<int64_t> extents = extents_of(piece, mesh);
  int64_t parts = 1;
  TensorId parted = b.reshape(x, {shape[0], 1, shape[1], shape[2]});
  for (size_t a = 0; a < piece.axes.size(); ++a) {
    const int64_t ranks = mesh.size(piece.axes[a]);
    const int64_t missing = ranks * extents[a + 1] - extents[a];
    if (missing > 0) parted = b.add("pad", {parted}, {{"low", Shape{0, 0, 0, 0}}, {"high", Shape{0, 0, missing, 0}}});
    parts *= ranks;
    parted = b.reshape(parted, {shape[0], parts, extents[a + 1], shape[2]});
  }
  return shape[0] == 1 ? b.reshape(parted, {parts, 1, extents.back(), shape[2]}) : b.transpose(parted, {1, 0, 2, 3});
}
// The other way round.
TensorId out_of_parts(GraphBuilder& b, TensorId x, const Piece& piece, const Mesh& mesh) {
  const Shape shape = b.shape(x);
  const std::vector<int64_t> extents = extents_of(piece, mesh);
  int64_t parts = shape[0];
  TensorId joined = shape[1] == 1 ? b.reshape(x, {1, parts, shape[2], shape[3]}) : b.transpose(x, {1, 0, 2, 3});
  for (size_t a = piece.axes.size(); a-- > 0;) {
    const int64_t ranks = mesh.size(piece.axes[a]);
    parts /= ranks;
    joined = b.reshape(joined, {shape[1], parts, ranks * extents[a + 1], shape[3]});
    if (ranks * extents[a + 1] > extents[a])
      joined = b.slice(joined, {0, 0, 0, 0}, {shape[1], parts, extents[a], shape[3]}, {1, 1, 1, 1});
  }
  return b.reshape(joined, {shape[1], piece.extent, shape[3]});
}
}  // namespace

// A split piece becomes whole.
TensorId RankBuilder::gather(TensorId x, const Shape& shape, std::vector<Split>& lies, const Split& split) {
  const TensorId opened = open(x, shape, lies, split, local_extent(split.piece, mesh()));
  const TensorId parts = b_.add("all_gather", {opened}, group(split.piece.axes));
  const TensorId joined = turned(b_, out_of_parts(b_, parts, split.piece, mesh()), split.piece);
  std::erase(lies, split);
  return b_.reshape(joined, local_shape_of(shape, lies, mesh()));
}

// Parts that lie everywhere are combined, and each rank keeps its range.
TensorId RankBuilder::scatter(TensorId x, const Shape& shape, std::vector<Split>& lies, const Split& split,
                              ReduceOp op) {
  const TensorId opened = turned(b_, open(x, shape, lies, split, split.piece.extent), split.piece);
  Attrs attrs = group(split.piece.axes);
  attrs.set("reduce", std::string(name_of(op)));
  const TensorId kept = b_.add("reduce_scatter", {into_parts(b_, opened, split.piece, mesh())}, attrs);
  lies.push_back(split);
  return b_.reshape(kept, local_shape_of(shape, lies, mesh()));
}

// What is split in one place is split in another.
TensorId RankBuilder::exchange(TensorId x, const Shape& shape, std::vector<Split>& lies, const Split& from,
                               const Split& to) {
  const TensorId opened = turned(b_, open(x, shape, lies, to, to.piece.extent), to.piece);
  const TensorId parts = b_.add("all_to_all", {into_parts(b_, opened, to.piece, mesh())}, group(from.piece.axes));
  lies.push_back(to);
  // One part a rank: each lies as x does now, and they are the ranges of `from`.
  const Shape local = local_shape_of(shape, lies, mesh());
  Shape all = local;
  all.insert(all.begin(), b_.shape(parts)[0]);
  int64_t inner = from.inner;
  for (const Split& other : lies)
    if (other.at == from.at && other.inner < from.inner)
      inner = inner / other.piece.extent * local_extent(other.piece, mesh());
  const int64_t here = local_extent(from.piece, mesh());
  const int64_t behind = product(local, from.at + 1, local.size()) * inner;
  const int64_t count = element_count(local);
  const TensorId view = b_.reshape(parts, {all[0], here * behind == 0 ? 0 : count / (here * behind), here, behind});
  const TensorId joined = turned(b_, out_of_parts(b_, view, from.piece, mesh()), from.piece);
  std::erase(lies, from);
  return b_.reshape(joined, local_shape_of(shape, lies, mesh()));
}

namespace {
bool contains(const std::vector<Split>& splits, const Split& split) {
  return std::ranges::find(splits, split) != splits.end();
}
bool fits(std::vector<Split> lies, const Split& split, const Shape& shape) {
  lies.push_back(split);
  return fit_together(lies, split.at, shape[split.at]);
}
}  // namespace

TensorId RankBuilder::reshard(TensorId x, const Shape& shape, const Sharding& from, const Sharding& to) {
  std::vector<Split> lies = splits_of(from, shape);
  const std::vector<Split> target = splits_of(to, shape);
  std::vector<Partial> partial = from.partial;
  const auto reduces = [&](Axis axis) {
    return std::ranges::find(partial, axis, &Partial::axis) != partial.end() && !to.partial_over(axis);
  };
  const auto is_idle = [&](Axis axis) {
    return std::ranges::find(partial, axis, &Partial::axis) == partial.end() &&
           std::ranges::none_of(lies, [&](const Split& split) {
             return std::ranges::find(split.piece.axes, axis) != split.piece.axes.end();
           });
  };
  // One step at a time, those first that leave less to send.
  const auto step = [&] {
    for (const Split& split : target) {
      if (contains(lies, split) || !fits(lies, split, shape)) continue;
      const std::vector<Axis>& axes = split.piece.axes;
      if (std::ranges::all_of(axes, is_idle)) {
        x = cut(x, shape, lies, split);
        return true;
      }
      if (!std::ranges::all_of(axes, reduces)) continue;
      const ReduceOp op = *from.partial_over(axes[0]);
      if (!std::ranges::all_of(axes, [&](Axis axis) { return from.partial_over(axis) == op; })) continue;
      x = scatter(x, shape, lies, split, op);
      for (Axis axis : axes) std::erase_if(partial, [axis](const Partial& one) { return one.axis == axis; });
      return true;
    }
    std::vector<Axis> axes;
    std::optional<ReduceOp> op;
    for (const Partial& one : partial) {
      if (!reduces(one.axis) || (op && *op != one.op)) continue;
      op = one.op;
      axes.push_back(one.axis);
    }
    if (op) {
      Attrs attrs = group(axes);
      attrs.set("reduce", std::string(name_of(*op)));
      x = b_.add("all_reduce", {x}, attrs);
      for (Axis axis : axes) std::erase_if(partial, [axis](const Partial& one) { return one.axis == axis; });
      return true;
    }
    for (const Split& split : lies) {
      if (contains(target, split)) continue;
      for (const Split& other : target) {
        std::vector<Split> rest = lies;
        std::erase(rest, split);
        if (contains(lies, other) || other.piece.axes != split.piece.axes || other.at == split.at ||
            !fits(lies, other, shape))
          continue;
        const Split left = split;
        x = exchange(x, shape, lies, left, other);
        return true;
      }
      const Split left = split;
      x = gather(x, shape, lies, left);
      return true;
    }
    std::vector<Axis> kept;
    for (const Partial& one : to.partial)
      if (is_idle(one.axis)) kept.push_back(one.axis), partial.push_back(one);
    if (kept.empty()) return false;
    x = where(is_first(kept), x, 0);
    return true;
  };
  while (step()) {
  }
  const Sharding reached = {pieces_of(lies, shape, mesh()), {}};
  INTERNAL_CHECK(reached.dims == to.dims, "{} cannot become {}", to_text(from, shape, mesh()),
                 to_text(to, shape, mesh()));
  return x;
}

}  // namespace stepc
