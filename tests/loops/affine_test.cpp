#include "loops/affine.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "interp/array.h"

namespace stepc {
namespace {

int64_t value_at(const Affine& affine, const Shape& loops) {
  int64_t value = affine.offset;
  for (const AffineTerm& term : affine.terms) value += term.stride * loops[term.loop];
  return value;
}

TEST(Affine, AddsAndScales) {
  const Affine sum = Affine::of(0, 4) + Affine::of(2) + Affine::constant(3);
  EXPECT_EQ(to_text(sum), "i0*4 + i2 + 3");
  EXPECT_EQ(to_text(sum + Affine::of(0, -4)), "i2 + 3");
  EXPECT_EQ(to_text(sum * 2), "i0*8 + i2*2 + 6");
  EXPECT_EQ(sum * 0, Affine());
  const AffineRange range = range_of(sum + Affine::of(1, -2), {5, 3, 2});
  EXPECT_EQ(range.low, -1);
  EXPECT_EQ(range.high, 20);
}

TEST(Affine, AReshapeNamesTheLoopToCut) {
  const Reshaped fits = reshaped({Affine::of(0), Affine::of(1)}, {4, 6}, {24}, {4, 6});
  ASSERT_TRUE(fits.map);
  EXPECT_EQ(to_text(fits.map->at(0)), "i0*6 + i1");
  const Reshaped cut = reshaped({Affine::of(0)}, {24}, {4, 6}, {24});
  EXPECT_FALSE(cut.map);
  ASSERT_TRUE(cut.split);
  EXPECT_EQ(cut.split->loop, 0U);
  EXPECT_EQ(cut.split->inner, 6);
  const Reshaped never = reshaped({Affine::of(0), Affine::of(1)}, {4, 6}, {3, 8}, {4, 6});
  EXPECT_FALSE(never.map || never.split) << "4 and 6 have no loops in common with 3 and 8";
}

// Wherever a reshape gives a map, both name the same element.
TEST(Affine, ReshapesKeepTheElement) {
  rc::check([] {
    const auto extents = *rc::gen::container<Shape>(3, rc::gen::element<int64_t>(2, 3, 4, 6));
    const int64_t all = extents[0] * extents[1] * extents[2];
    const std::vector<Shape> shapes = {{all},
                                       {extents[0], extents[1] * extents[2]},
                                       {extents[0] * extents[1], extents[2]},
                                       {1, all, 1},
                                       extents,
                                       {extents[0], 1, extents[1], extents[2]},
                                       {all % 2 == 0 ? 2 : 1, all % 2 == 0 ? all / 2 : all}};
    const IndexMap identity = {Affine::of(0), Affine::of(1), Affine::of(2)};
    const Shape to = *rc::gen::elementOf(shapes);
    const Reshaped there = reshaped(identity, extents, to, extents);
    if (!there.map) return;
    const Reshaped back = reshaped(*there.map, to, extents, extents);
    RC_ASSERT(back.map.has_value());
    RC_ASSERT(*back.map == identity);
    for_each_index(extents, [&](const Shape& loops, int64_t i) {
      RC_ASSERT(value_at(position_of(*there.map, contiguous_strides(to), 0), loops) == i);
    });
  });
}

}  // namespace
}  // namespace stepc
