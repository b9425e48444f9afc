#include "loops/affine.h"

#include <algorithm>

#include "base/check.h"

namespace stepc {

int64_t Affine::stride_of(uint32_t loop) const {
  for (const AffineTerm& term : terms)
    if (term.loop == loop) return term.stride;
  return 0;
}

Affine operator+(const Affine& a, const Affine& b) {
  Affine sum;
  sum.offset = a.offset + b.offset;
  auto left = a.terms.begin();
  auto right = b.terms.begin();
  while (left != a.terms.end() || right != b.terms.end()) {
    if (right == b.terms.end() || (left != a.terms.end() && left->loop < right->loop)) {
      sum.terms.push_back(*left++);
    } else if (left == a.terms.end() || right->loop < left->loop) {
      sum.terms.push_back(*right++);
    } else {
      if (left->stride + right->stride != 0) sum.terms.push_back({left->loop, left->stride + right->stride});
      ++left;
      ++right;
    }
  }
  return sum;
}

Affine operator*(const Affine& a, int64_t factor) {
  if (factor == 0) return {};
  Affine out = a;
  out.offset *= factor;
  for (AffineTerm& term : out.terms) term.stride *= factor;
  return out;
}

AffineRange range_of(const Affine& affine, const std::vector<int64_t>& extents) {
  AffineRange range{affine.offset, affine.offset};
  for (const AffineTerm& term : affine.terms)
    (term.stride > 0 ? range.high : range.low) += term.stride * (extents[term.loop] - 1);
  return range;
}

std::string to_text(const Affine& affine) {
  std::string out;
  for (const AffineTerm& term : affine.terms) {
    if (!out.empty()) out += " + ";
    out += term.stride == 1 ? str("i{}", term.loop) : str("i{}*{}", term.loop, term.stride);
  }
  if (affine.offset != 0 || out.empty()) out += out.empty() ? str("{}", affine.offset) : str(" + {}", affine.offset);
  return out;
}

namespace {

// Divides a form by `divisor` into quotient and remainder, both affine, or says what stands in the way.
struct Division {
  Affine quotient, remainder;
  bool is_affine = false;
  std::optional<LoopSplit> split;
};
Division divided(const Affine& affine, int64_t divisor, const std::vector<int64_t>& extents) {
  Division out;
  for (const AffineTerm& term : affine.terms) {
    if (term.stride % divisor == 0)
      out.quotient.terms.push_back({term.loop, term.stride / divisor});
    else
      out.remainder.terms.push_back(term);
  }
  int64_t rest = affine.offset % divisor;
  if (rest < 0) rest += divisor;
  out.remainder.offset = rest;
  out.quotient.offset = (affine.offset - rest) / divisor;
  const AffineRange range = range_of(out.remainder, extents);
  out.is_affine = range.low >= 0 && range.high < divisor;
  if (out.is_affine) return out;
  for (const AffineTerm& term : out.remainder.terms) {
    if (term.stride <= 0 || divisor % term.stride != 0) continue;
    const int64_t inner = divisor / term.stride;
    const int64_t extent = extents[term.loop];
    if (inner > 1 && inner < extent && extent % inner == 0) out.split = LoopSplit{term.loop, inner};
  }
  return out;
}

}  // namespace

Reshaped reshaped(const IndexMap& map, const Shape& from, const Shape& to, const std::vector<int64_t>& extents) {
  INTERNAL_CHECK_EQ(map.size(), from.size());
  IndexMap out(to.size());
  if (element_count(from) == 0) return {std::move(out), std::nullopt};
  size_t f = 0;
  size_t t = 0;
  // The smallest runs of dimensions with as many elements on both sides.
  while (f < from.size() || t < to.size()) {
    const size_t first_from = f;
    const size_t first_to = t;
    int64_t count_from = f < from.size() ? from[f++] : 1;
    int64_t count_to = t < to.size() ? to[t++] : 1;
    while (count_from != count_to) {
      if (count_from < count_to) {
        INTERNAL_CHECK_LT(f, from.size());
        count_from *= from[f++];
      } else {
        INTERNAL_CHECK_LT(t, to.size());
        count_to *= to[t++];
      }
    }
    Affine whole;
    for (size_t d = first_from; d < f; ++d) whole = whole * from[d] + map[d];
    for (size_t d = t; d-- > first_to;) {
      if (d == first_to) {
        out[d] = whole;
        break;
      }
      if (to[d] == 1) continue;
      Division division = divided(whole, to[d], extents);
      if (!division.is_affine) return {std::nullopt, division.split};
      out[d] = std::move(division.remainder);
      whole = std::move(division.quotient);
    }
  }
  return {std::move(out), std::nullopt};
}

Affine position_of(const IndexMap& map, const Shape& strides, int64_t offset) {
  Affine position = Affine::constant(offset);
  for (size_t d = 0; d < map.size(); ++d) position = position + map[d] * strides[d];
  return position;
}

}  // namespace stepc
