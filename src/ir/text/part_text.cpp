#include "ir/text/part_text.h"

#include <set>
#include <utility>
#include <vector>

#include "base/check.h"

namespace stepc {

namespace {

Axis parse_axis(TextCursor& in, const Mesh& mesh) {
  const std::string_view name = in.word();
  const std::optional<Axis> axis = mesh.find(name);
  if (!axis) in.fail(str("the mesh has no axis '{}'", name));
  return *axis;
}

Pieces parse_pieces(TextCursor& in, const Mesh& mesh, int64_t& size, std::set<Axis>& used) {
  Pieces pieces;
  size = 1;
  do {
    Piece piece{in.integer(), {}};
    if (piece.extent < 0 || __builtin_mul_overflow(size, piece.extent, &size)) in.fail("a piece is out of range");
    while (in.accept("/")) {
      piece.zigzags = in.accept("~");
      piece.axes.push_back(parse_axis(in, mesh));
      if (!used.insert(piece.axes.back()).second) in.fail("an axis is used twice in a sharding");
    }
    pieces.push_back(std::move(piece));
  } while (in.accept("*"));
  const bool is_cut = pieces.size() > 1 || !pieces[0].axes.empty();
  if (is_cut && size == 0) in.fail("a dimension of size 0 is not split");
  pieces = canonical(pieces, mesh);
  for (size_t p = 0; p < pieces.size(); ++p) {
    if (!pieces[p].zigzags) continue;
    const bool turns = p > 0 && pieces[p - 1].axes.empty() && pieces[p - 1].extent % 2 == 0;
    if (pieces[p].axes.size() != 1 || pieces[p].extent != mesh.size(pieces[p].axes[0]) || !turns)
      in.fail("a zig-zag is over one axis, of its extent, behind an even number of rows");
  }
  return pieces;
}

}  // namespace

Mesh parse_mesh(TextCursor& in) {
  std::vector<MeshAxis> axes;
  do {
    MeshAxis axis{std::string(in.word()), 0};
    in.expect("=");
    axis.size = in.integer();
    axes.push_back(std::move(axis));
  } while (in.accept(","));
  Mesh mesh;
  try {
    mesh = make_mesh(axes);
  } catch (const UserError& error) {
    in.fail(error.what());
  }
  if (mesh.axes != axes) in.fail(str("written as a mesh is, it is {}", to_text(mesh)));
  return mesh;
}

PartOf parse_sharding(TextCursor& in, const Mesh& mesh) {
  PartOf of;
  std::set<Axis> used;
  in.list(">", [&] {
    of.shape.emplace_back();
    of.sharding.dims.push_back(parse_pieces(in, mesh, of.shape.back(), used));
  });
  for (bool more = true; more;) {
    more = false;
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
      if (!in.accept(str("{}(", name_of(op)))) continue;
      const Axis axis = parse_axis(in, mesh);
      if (!used.insert(axis).second) in.fail("an axis is used twice in a sharding");
      of.sharding.set_partial(axis, op);
      in.expect(")");
      more = true;
    }
  }
  return of;
}

std::string part_text(const std::optional<PartOf>& part, const Mesh& mesh) {
  return part ? str(" part of {}", to_text(part->sharding, part->shape, mesh)) : std::string();
}

std::optional<PartOf> parse_part(TextCursor& in, const Mesh& mesh) {
  if (!in.accept("part of ")) return std::nullopt;
  in.expect("<");
  return parse_sharding(in, mesh);
}

}  // namespace stepc
