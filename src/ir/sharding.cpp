#include "ir/sharding.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace stepc {

namespace {
constexpr std::array<std::string_view, 3> kReduceNames = {"sum", "max", "min"};
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
}  // namespace

std::string_view name_of(ReduceOp op) { return kReduceNames[static_cast<size_t>(op)]; }

std::optional<ReduceOp> parse_reduce_op(std::string_view name) {
  const auto found = std::ranges::find(kReduceNames, name);
  if (found == kReduceNames.end()) return std::nullopt;
  return static_cast<ReduceOp>(found - kReduceNames.begin());
}

bool Sharding::is_whole() const {
  return partial.empty() && std::ranges::all_of(dims, [](const Pieces& pieces) { return pieces.empty(); });
}

bool Sharding::splits(Axis axis) const {
  for (const Pieces& pieces : dims)
    for (const Piece& piece : pieces)
      if (std::ranges::find(piece.axes, axis) != piece.axes.end()) return true;
  return false;
}

std::optional<ReduceOp> Sharding::partial_over(Axis axis) const {
  const auto found = std::ranges::find(partial, axis, &Partial::axis);
  if (found == partial.end()) return std::nullopt;
  return found->op;
}

void Sharding::set_partial(Axis axis, ReduceOp op) {
  clear_partial(axis);
  partial.insert(std::ranges::lower_bound(partial, axis, {}, &Partial::axis), Partial{axis, op});
}

void Sharding::clear_partial(Axis axis) {
  std::erase_if(partial, [axis](const Partial& one) { return one.axis == axis; });
}

int64_t local_extent(const Piece& piece, const Mesh& mesh) {
  int64_t extent = piece.extent;
  for (Axis axis : piece.axes) extent = ceil_div(extent, mesh.size(axis));
  return extent;
}

int64_t local_extent(const Pieces& pieces, int64_t size, const Mesh& mesh) {
  if (pieces.empty()) return size;
  int64_t product = 1;
  for (const Piece& piece : pieces) product *= local_extent(piece, mesh);
  return product;
}

std::vector<int64_t> local_shape(const Sharding& sharding, const std::vector<int64_t>& shape, const Mesh& mesh) {
  std::vector<int64_t> out;
  for (size_t d = 0; d < shape.size(); ++d) out.push_back(local_extent(sharding.dims[d], shape[d], mesh));
  return out;
}

namespace {
int64_t place_of(const Pieces& pieces, int64_t local, const Mesh& mesh, const std::vector<int64_t>& at) {
  int64_t place = 0;
  int64_t stride = 1;
  for (size_t p = pieces.size(); p-- > 0;) {
    const Piece& piece = pieces[p];
    const int64_t here = local_extent(piece, mesh);
    int64_t inside = local % here;
    local /= here;
    if (piece.zigzags) {
      const int64_t rank = at[piece.axes[0]];
      place += (local % 2 == 0 ? rank : piece.extent - 1 - rank) * stride;
      stride *= piece.extent;
      continue;
    }
    std::vector<int64_t> extents = {piece.extent};  // before each axis
    for (Axis axis : piece.axes) extents.push_back((extents.back() + mesh.size(axis) - 1) / mesh.size(axis));
    for (size_t a = piece.axes.size(); a-- > 0;) {
      inside += at[piece.axes[a]] * extents[a + 1];
      if (inside >= extents[a]) return -1;
    }
    place += inside * stride;
    stride *= piece.extent;
  }
  return place;
}
}  // namespace

std::vector<int64_t> places_of(const Pieces& pieces, int64_t size, const Mesh& mesh, int64_t rank) {
  const std::vector<int64_t> at = coordinates_of(mesh, rank);
  std::vector<int64_t> places(static_cast<size_t>(local_extent(pieces, size, mesh)));
  for (size_t i = 0; i < places.size(); ++i) {
    const auto local = static_cast<int64_t>(i);
    places[i] = pieces.empty() ? local : place_of(pieces, local, mesh, at);
  }
  return places;
}

bool is_even(const Piece& piece, const Mesh& mesh) { return piece.extent % mesh.size(piece.axes) == 0; }

bool is_even(const Sharding& sharding, const Mesh& mesh) {
  return std::ranges::all_of(sharding.dims, [&](const Pieces& pieces) {
    return std::ranges::all_of(pieces, [&](const Piece& piece) { return is_even(piece, mesh); });
  });
}

Pieces canonical(const Pieces& pieces, const Mesh& mesh) {
  Pieces out;
  const auto add = [&](Piece piece) {
    if (piece.axes.empty() && piece.extent == 1) return;
    if (piece.axes.empty() && !out.empty() && out.back().axes.empty())
      out.back().extent *= piece.extent;
    else
      out.push_back(std::move(piece));
  };
  bool is_split = false;
  for (Piece piece : pieces) {
    is_split = is_split || !piece.axes.empty();
    while (!piece.axes.empty() && !piece.zigzags && piece.extent % mesh.size(piece.axes[0]) == 0) {
      add({mesh.size(piece.axes[0]), {piece.axes[0]}});
      piece.extent /= mesh.size(piece.axes[0]);
      piece.axes.erase(piece.axes.begin());
    }
    add(std::move(piece));
  }
  return is_split ? out : Pieces();
}

void verify(const Sharding& sharding, const std::vector<int64_t>& shape, const Mesh& mesh) {
  INTERNAL_CHECK_EQ(sharding.dims.size(), shape.size(), "a sharding of [{}]", fmt::join(shape, ", "));
  std::vector<bool> used(mesh.axes.size(), false);
  const auto use = [&](Axis axis) {
    INTERNAL_CHECK_LT(axis, mesh.axes.size(), "an axis of the mesh {}", to_text(mesh));
    INTERNAL_CHECK(!used[axis], "the axis '{}' is used twice", mesh.axes[axis].name);
    used[axis] = true;
  };
  for (size_t d = 0; d < shape.size(); ++d) {
    const Pieces& pieces = sharding.dims[d];
    int64_t product = 1;
    for (size_t p = 0; p < pieces.size(); ++p) {
      const Piece& piece = pieces[p];
      INTERNAL_CHECK(piece.extent >= 1, "a piece of dimension {}", d);
      product *= piece.extent;
      for (Axis axis : piece.axes) use(axis);
      if (!piece.zigzags) continue;
      INTERNAL_CHECK(piece.axes.size() == 1 && piece.extent == mesh.size(piece.axes[0]), "a zig-zag of {} over {} axes",
                     piece.extent, piece.axes.size());
      INTERNAL_CHECK(p > 0 && pieces[p - 1].axes.empty() && pieces[p - 1].extent % 2 == 0,
                     "a zig-zag that does not turn back");
    }
    if (pieces.empty()) continue;
    INTERNAL_CHECK_EQ(product, shape[d], "the pieces of dimension {}", d);
    INTERNAL_CHECK(canonical(pieces, mesh) == pieces, "the pieces of dimension {} are not canonical", d);
  }
  for (size_t i = 0; i < sharding.partial.size(); ++i) {
    use(sharding.partial[i].axis);
    INTERNAL_CHECK(i == 0 || sharding.partial[i - 1].axis < sharding.partial[i].axis, "partial axes out of order");
  }
}

namespace {
// Pieces that were cut because they divide are joined again: 2/dp_shard * 4 is 8/dp_shard.
std::string dim_text(const Pieces& pieces, int64_t size, const Mesh& mesh) {
  if (pieces.empty()) return str("{}", size);
  std::vector<std::string> parts;
  for (size_t i = 0; i < pieces.size();) {
    Piece joined = pieces[i++];
    while (i < pieces.size() && !joined.axes.empty() && !joined.zigzags && !pieces[i].zigzags) {
      Piece longer = joined;
      longer.extent *= pieces[i].extent;
      longer.axes.insert(longer.axes.end(), pieces[i].axes.begin(), pieces[i].axes.end());
      if (canonical({longer}, mesh) != canonical({joined, pieces[i]}, mesh)) break;
      joined = std::move(longer);
      ++i;
    }
    std::string part = str("{}", joined.extent);
    for (Axis axis : joined.axes) part += str("/{}{}", joined.zigzags ? "~" : "", mesh.axes[axis].name);
    parts.push_back(std::move(part));
  }
  return str("{}", fmt::join(parts, "*"));
}
}  // namespace

std::string to_text(const Sharding& sharding, const std::vector<int64_t>& shape, const Mesh& mesh) {
  std::vector<std::string> parts;
  for (size_t d = 0; d < shape.size(); ++d) parts.push_back(dim_text(sharding.dims[d], shape[d], mesh));
  std::string out = str("<{}>", fmt::join(parts, ", "));
  for (const Partial& one : sharding.partial) out += str(" {}({})", name_of(one.op), mesh.axes[one.axis].name);
  return out;
}

}  // namespace stepc
