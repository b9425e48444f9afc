#include "loops/lower/moved_index.h"

#include <map>

#include "base/check.h"

namespace stepc {

namespace {

struct Move {
  const Graph& graph;
  const Node& node;
  size_t operand;
  const IndexMap& map;
  const std::vector<int64_t>& extents;

  [[nodiscard]] const Shape& in() const { return graph.shape(node.inputs[operand]); }
  [[nodiscard]] const Shape& out() const { return graph.shape(node.outputs[0]); }
  [[nodiscard]] const Shape& ints(std::string_view name) const { return node.attrs.get<Shape>(name); }
};

MovedIndex found(Reshaped result) { return {std::move(result.map), result.split, {}, true}; }

MovedIndex through_reshape(const Move& move) { return found(reshaped(move.map, move.out(), move.in(), move.extents)); }
MovedIndex through_transpose(const Move& move) {
  const Shape& permutation = move.ints("permutation");
  IndexMap map(permutation.size());
  for (size_t d = 0; d < permutation.size(); ++d) map[static_cast<size_t>(permutation[d])] = move.map[d];
  return {std::move(map), {}, {}, true};
}
MovedIndex through_expand(const Move& move) { return {broadcast_index(move.map, move.in()), {}, {}, true}; }
MovedIndex through_slice(const Move& move) {
  IndexMap map = move.map;
  for (size_t d = 0; d < map.size(); ++d)
    map[d] = map[d] * move.ints("steps")[d] + Affine::constant(move.ints("starts")[d]);
  return {std::move(map), {}, {}, move.in() == move.out()};
}
MovedIndex through_reverse(const Move& move) {
  IndexMap map = move.map;
  for (int64_t dim : move.ints("dims")) {
    const auto d = static_cast<size_t>(dim);
    map[d] = map[d] * -1 + Affine::constant(move.in()[d] - 1);
  }
  return {std::move(map), {}, {}, true};
}
MovedIndex through_as_strided(const Move& move) {
  const Affine position = position_of(move.map, move.ints("strides"), move.node.attrs.get<int64_t>("offset"));
  MovedIndex moved = found(reshaped({position}, {element_count(move.in())}, move.in(), move.extents));
  moved.onto = false;
  return moved;
}

// Operand index and guard along one dimension where the operand begins at `begin`.
void shift(const Move& move, size_t dim, int64_t begin, MovedIndex& moved) {
  const int64_t size = move.in()[dim];
  const AffineRange range = range_of((*moved.map)[dim], move.extents);
  if (range.low < begin || range.high >= begin + size) {
    moved.guards.push_back({(*moved.map)[dim], begin, begin + size});
    moved.onto = false;
  }
  (*moved.map)[dim] = (*moved.map)[dim] + Affine::constant(-begin);
}
MovedIndex through_pad(const Move& move) {
  MovedIndex moved{move.map, {}, {}, true};
  for (size_t d = 0; d < move.map.size(); ++d) shift(move, d, move.ints("low")[d], moved);
  return moved;
}
MovedIndex through_concat(const Move& move) {
  const auto dim = static_cast<size_t>(move.node.attrs.get<int64_t>("dim"));
  int64_t begin = 0;
  for (size_t k = 0; k < move.operand; ++k) begin += move.graph.shape(move.node.inputs[k])[dim];
  MovedIndex moved{move.map, {}, {}, true};
  shift(move, dim, begin, moved);
  return moved;
}

MovedIndex back_through_reshape(const Move& move) {
  return found(reshaped(move.map, move.in(), move.out(), move.extents));
}
MovedIndex back_through_transpose(const Move& move) {
  IndexMap map;
  for (int64_t d : move.ints("permutation")) map.push_back(move.map[static_cast<size_t>(d)]);
  return {std::move(map), {}, {}, true};
}

// Where nothing is repeated.
MovedIndex back_through_expand(const Move& move) {
  if (element_count(move.in()) != element_count(move.out())) return {};
  IndexMap map(move.out().size());
  for (size_t d = 0; d < move.map.size(); ++d) map[map.size() - move.map.size() + d] = move.map[d];
  return {std::move(map), {}, {}, true};
}

using MoveFn = MovedIndex (*)(const Move& move);
const std::map<std::string_view, MoveFn>& operand_moves() {
  static const std::map<std::string_view, MoveFn> kMoves = {
      {"reshape", through_reshape}, {"transpose", through_transpose}, {"expand", through_expand},
      {"slice", through_slice},     {"reverse", through_reverse},     {"as_strided", through_as_strided},
      {"pad", through_pad},         {"concat", through_concat},
  };
  return kMoves;
}
const std::map<std::string_view, MoveFn>& result_moves() {
  static const std::map<std::string_view, MoveFn> kMoves = {{"reshape", back_through_reshape},
                                                            {"transpose", back_through_transpose},
                                                            {"reverse", through_reverse},
                                                            {"expand", back_through_expand}};
  return kMoves;
}

}  // namespace

bool moves_elements(std::string_view op) { return operand_moves().contains(op); }

MovedIndex operand_index(const Graph& graph, const Node& node, size_t k, const IndexMap& map,
                         const std::vector<int64_t>& extents) {
  return operand_moves().at(node.op)({graph, node, k, map, extents});
}

MovedIndex result_index(const Graph& graph, const Node& node, const IndexMap& map,
                        const std::vector<int64_t>& extents) {
  const auto move = result_moves().find(node.op);
  if (move == result_moves().end()) return {};
  return move->second({graph, node, 0, map, extents});
}

IndexMap broadcast_index(const IndexMap& map, const Shape& operand) {
  IndexMap out(operand.size());
  const size_t missing = map.size() - operand.size();
  for (size_t d = 0; d < operand.size(); ++d)
    if (operand[d] != 1) out[d] = map[d + missing];
  return out;
}

}  // namespace stepc
