#include "passes/partition/shardings/splits.h"

#include <algorithm>

#include "base/check.h"

namespace stepc {

std::vector<Split> splits_of(const Sharding& sharding, const Shape& shape) {
  std::vector<Split> out;
  for (size_t d = 0; d < shape.size(); ++d) {
    int64_t inner = shape[d];
    for (const Piece& piece : sharding.dims[d]) {
      inner /= piece.extent;
      if (!piece.axes.empty()) out.push_back({d, piece, inner});
    }
  }
  return out;
}

namespace {
// Those of one dimension, major first.
std::vector<Split> sorted_at(const std::vector<Split>& splits, size_t at) {
  std::vector<Split> here;
  for (const Split& split : splits)
    if (split.at == at) here.push_back(split);
  std::ranges::sort(here, [](const Split& a, const Split& b) { return a.inner > b.inner; });
  return here;
}
}  // namespace

bool fit_together(const std::vector<Split>& splits, size_t at, int64_t size) {
  int64_t left = size;  // elements of which each that is still to come repeats
  for (const Split& split : sorted_at(splits, at)) {
    const int64_t spans = split.inner * split.piece.extent;
    if (spans == 0 || left % spans != 0) return false;
    if (split.piece.zigzags && left / spans % 2 != 0) return false;
    left = split.inner;
  }
  return true;
}

std::vector<Pieces> pieces_of(const std::vector<Split>& splits, const Shape& sizes, const Mesh& mesh) {
  std::vector<Pieces> out(sizes.size());
  for (size_t d = 0; d < sizes.size(); ++d) {
    int64_t left = sizes[d];
    Pieces pieces;
    for (const Split& split : sorted_at(splits, d)) {
      const int64_t spans = split.inner * split.piece.extent;
      INTERNAL_CHECK(spans > 0 && left % spans == 0, "pieces of a dimension of {} overlap", sizes[d]);
      pieces.push_back({left / spans, {}});
      pieces.push_back(split.piece);
      left = split.inner;
    }
    if (pieces.empty()) continue;
    pieces.push_back({left, {}});
    out[d] = canonical(pieces, mesh);
  }
  return out;
}

namespace {
// How many rows of a factor stand between its last split, or its beginning, and the place with `left` elements behind.
int64_t rows_before(int factor, int64_t left, const ShardingRule& rule, const FactorSplits& out) {
  const bool is_first = out.splits.empty() || out.splits.back().at != static_cast<size_t>(factor);
  return (is_first ? rule.factors[static_cast<size_t>(factor)].size : out.splits.back().inner) / left;
}
// One dimension: factors are filled major to minor with pieces, and a piece that is whole may end within a factor.
void walk(const Pieces& pieces, const std::vector<int>& factors, const ShardingRule& rule, FactorSplits& out) {
  size_t next = 0;
  int64_t rest = 0;  // of a whole piece that a factor has used in part; 0: none
  const auto give_up = [&] {
    for (; next < pieces.size(); ++next)
      out.unfit.insert(out.unfit.end(), pieces[next].axes.begin(), pieces[next].axes.end());
  };
  for (int factor : factors) {
    const Factor& of = rule.factors[static_cast<size_t>(factor)];
    int64_t left = of.size;
    while (left > 1) {
      if (next == pieces.size()) return;
      const Piece& piece = pieces[next];
      const int64_t extent = rest != 0 ? rest : piece.extent;
      if (left % extent == 0) {
        const bool turns = !piece.zigzags || rows_before(factor, left, rule, out) % 2 == 0;
        left /= extent;
        if (!turns || (!piece.axes.empty() && of.kind == Factor::Kind::kWhole))
          out.unfit.insert(out.unfit.end(), piece.axes.begin(), piece.axes.end());
        else if (!piece.axes.empty())
          out.splits.push_back({static_cast<size_t>(factor), piece, left});
        rest = 0;
        ++next;
      } else if (piece.axes.empty() && extent % left == 0) {
        rest = extent / left;
        left = 1;
      } else {
        return give_up();
      }
    }
  }
  give_up();  // what no factor covers
}
}  // namespace

FactorSplits onto_factors(const Sharding& sharding, const Shape& shape, const ShardingRule::Dims& dims,
                          const ShardingRule& rule) {
  FactorSplits out;
  for (size_t d = 0; d < shape.size(); ++d)
    if (!sharding.dims[d].empty()) walk(sharding.dims[d], dims[d], rule, out);
  return out;
}

Sharding from_factors(const std::vector<Split>& splits, const Shape& shape, const ShardingRule::Dims& dims,
                      const ShardingRule& rule, const Mesh& mesh) {
  std::vector<Split> out;
  for (size_t d = 0; d < shape.size(); ++d) {
    int64_t inner = shape[d];
    for (int factor : dims[d]) {
      inner /= rule.factors[static_cast<size_t>(factor)].size;
      for (const Split& split : splits)
        if (split.at == static_cast<size_t>(factor)) out.push_back({d, split.piece, split.inner * inner});
    }
  }
  return {pieces_of(out, shape, mesh), {}};
}

bool has_factor(const ShardingRule::Dims& dims, size_t factor) {
  return std::ranges::any_of(dims, [factor](const std::vector<int>& factors) {
    return std::ranges::find(factors, static_cast<int>(factor)) != factors.end();
  });
}

}  // namespace stepc
