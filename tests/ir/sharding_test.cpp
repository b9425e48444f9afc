#include "ir/sharding.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

TEST(Mesh, AxesStandInOneOrderAndThoseOfOneRankAreLeftOut) {
  const Mesh mesh = parse_mesh("tp=4, dp_shard=2,cp=1");
  EXPECT_EQ(to_text(mesh), "dp_shard=2,tp=4");
  EXPECT_EQ(mesh.ranks(), 8);
  EXPECT_EQ(mesh.find("tp"), Axis{1});
  EXPECT_EQ(mesh.find("cp"), std::nullopt);
  EXPECT_EQ(parse_mesh("").ranks(), 1);
}

TEST(Mesh, RanksCountTheLastAxisFastest) {
  const Mesh mesh = parse_mesh("dp_replicate=2,dp_shard=3,tp=2");
  EXPECT_EQ(coordinates_of(mesh, 7), (std::vector<int64_t>{1, 0, 1}));
  EXPECT_EQ(group_of(mesh, {1}, 7), (std::vector<int64_t>{7, 9, 11}));
  EXPECT_EQ(group_of(mesh, {0, 2}, 7), (std::vector<int64_t>{0, 1, 6, 7}));
}

TEST(Mesh, BadOnesAreRefused) {
  EXPECT_USER_ERROR(parse_mesh("dp_shards=2"), "no axis of a mesh is named 'dp_shards' (did you mean 'dp_shard'?)");
  EXPECT_USER_ERROR(parse_mesh("tp=0"), "the mesh has 0 along 'tp'; the least is 1");
  EXPECT_USER_ERROR(parse_mesh("tp=2,tp=2"), "the axis 'tp' twice");
  EXPECT_USER_ERROR(parse_mesh("tp"), "'tp' is no axis of a mesh; write dp_shard=2,tp=4");
  EXPECT_USER_ERROR(parse_mesh("tp=two"), "'two' is no size of the axis 'tp'");
  EXPECT_USER_ERROR(parse_mesh("tp=1048576,dp_shard=1048576"), "more than 1048576 ranks");
}

class ShardingOn : public ::testing::Test {
 protected:
  Mesh mesh = parse_mesh("dp_shard=2,tp=4");
  Axis dp = 0, tp = 1;
};

TEST_F(ShardingOn, WhatDividesIsCutIntoAPieceAnAxis) {
  EXPECT_EQ(canonical({{16, {tp, dp}}}, mesh), (Pieces{{4, {tp}}, {2, {dp}}, {2, {}}}));
  EXPECT_EQ(canonical({{3, {}}, {1, {}}, {2, {}}, {8, {tp}}}, mesh), (Pieces{{6, {}}, {4, {tp}}, {2, {}}}));
  EXPECT_EQ(canonical({{12, {}}}, mesh), Pieces());
  EXPECT_EQ(canonical({{10, {dp, tp}}}, mesh), (Pieces{{2, {dp}}, {5, {tp}}}));
}

TEST_F(ShardingOn, WhatDoesNotDivideIsPaddedAxisByAxis) {
  EXPECT_EQ(local_extent(Piece{10, {tp}}, mesh), 3);
  EXPECT_EQ(local_extent(Piece{10, {tp, dp}}, mesh), 2);
  EXPECT_EQ(local_extent(Piece{3, {tp}}, mesh), 1);
  EXPECT_FALSE(is_even(Piece{10, {tp}}, mesh));
  const Sharding sharding = {{Pieces{{10, {tp}}}, {}}, {}};
  EXPECT_EQ(local_shape(sharding, {10, 7}, mesh), (std::vector<int64_t>{3, 7}));
}

TEST_F(ShardingOn, InZigZagEachRankHasAnEarlyAndALateChunk) {
  const Piece turning = {4, {tp}, true};
  const Pieces pieces = canonical({{3, {}}, {2, {}}, turning, {2, {}}}, mesh);
  EXPECT_EQ(pieces, (Pieces{{6, {}}, turning, {2, {}}}));
  EXPECT_EQ(local_extent(pieces, 48, mesh), 12);
  EXPECT_EQ(places_of(pieces, 48, mesh, 1), (std::vector<int64_t>{2, 3, 12, 13, 18, 19, 28, 29, 34, 35, 44, 45}));
  EXPECT_EQ(places_of(pieces, 48, mesh, 4), (std::vector<int64_t>{0, 1, 14, 15, 16, 17, 30, 31, 32, 33, 46, 47}));
  EXPECT_EQ(to_text(Sharding{{pieces}, {}}, {48}, mesh), "<6*4/~tp*2>");
  verify({{pieces}, {}}, {48}, mesh);
}

TEST_F(ShardingOn, PrintsWhatAPersonWouldWrite) {
  const auto text = [&](const Pieces& pieces, int64_t size) {
    return to_text(Sharding{{canonical(pieces, mesh)}, {}}, {size}, mesh);
  };
  EXPECT_EQ(text({{16, {tp, dp}}}, 16), "<16/tp/dp_shard>");
  EXPECT_EQ(text({{3, {}}, {8, {tp}}}, 24), "<3*8/tp>");
  EXPECT_EQ(text({{10, {tp}}}, 10), "<10/tp>");
  Sharding partial = Sharding::whole(1);
  partial.set_partial(tp, ReduceOp::kMax);
  partial.set_partial(dp, ReduceOp::kSum);
  EXPECT_EQ(to_text(partial, {5}, mesh), "<5> sum(dp_shard) max(tp)");
}

TEST_F(ShardingOn, VerifyNamesTheBrokenPromise) {
  const auto expect = [&](const Sharding& sharding, const std::string& what) {
    try {
      verify(sharding, {16}, mesh);
      FAIL() << "nothing was wrong; expected: " << what;
    } catch (const InternalError& error) {
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  };
  expect({{}, {}}, "a sharding of [16]");
  expect({{Pieces{{4, {tp}}}}, {}}, "the pieces of dimension 0");
  expect({{Pieces{{16, {tp}}}}, {}}, "are not canonical");
  expect({{Pieces{{4, {tp}}, {4, {tp}}}}, {}}, "the axis 'tp' is used twice");
  expect({{Pieces{{4, {tp}}, {4, {}}}}, {{tp, ReduceOp::kSum}}}, "the axis 'tp' is used twice");
  expect({{Pieces{}}, {{7, ReduceOp::kSum}}}, "an axis of the mesh");
  expect({{Pieces{{4, {tp}, true}, {4, {}}}}, {}}, "a zig-zag that does not turn back");
  expect({{Pieces{{2, {}}, {8, {tp}, true}}}, {}}, "a zig-zag of 8 over 1 axes");
}

}  // namespace
}  // namespace stepc
