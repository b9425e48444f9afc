#include "schedule/shared_memory.h"

#include <gtest/gtest.h>

namespace stepc {
namespace {

using Windows = std::vector<SharedMemory::Window>;

// Rows of one tensor, all of it, parts of another one, and what lies in the program's own memory.
constexpr std::string_view kTrace = R"(stepc.trace 1
storage s0 bytes=64 external
storage s1 bytes=64 escapes
storage s2 bytes=96 escapes
%0: f32[4, 4] @s0 = parameter "weight"
%1: f32[4](1)+4 @s0 = alias
call 0 %2: f32[4, 4] @s1 = aten::relu(%0) | forward ""
call 1 %3: f32[4](1)+8 @s1 = aten::select.int(%2, 0, 2) | forward ""
call 2 %4: f32[4, 4](1, 4) @s1 = aten::t(%2) | forward ""
call 3 %5: f32[24] @s2 = aten::repeat(%1, [6]) | forward ""
call 4 %6: f32[8](1)+2 @s2 = aten::slice.Tensor(%5, 0, 2, 10, 1) | forward ""
call 5 %7: f32[8](1)+6 @s2 = aten::slice.Tensor(%5, 0, 6, 14, 1) | forward ""
call 6 %8: i32[24] @s2 = aten::view.dtype(%5, dtype:i32) | forward ""
return %2
ticks 20
)";

std::vector<SharedMemory> shared(const std::vector<int>& values) {
  const Trace trace = parse_trace(kTrace);
  std::vector<ValueId> handed_out;
  for (int value : values) handed_out.push_back(value < 0 ? ValueId() : ValueId(value));
  return shared_memories(trace, handed_out);
}

TEST(SharedMemory, TheTensorThatCoversTheOthersHoldsThem) {
  const std::vector<SharedMemory> all = shared({3, -1, 2, 4});
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].holder, 2U);
  EXPECT_EQ(all[0].elements, 16);
  EXPECT_EQ(all[0].windows, (Windows{{0, 8}, {3, 0}}));
}

TEST(SharedMemory, OfOneTensorTwiceTheFirstHolds) {
  const std::vector<SharedMemory> all = shared({2, 2});
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].holder, 0U);
  EXPECT_EQ(all[0].windows, (Windows{{1, 0}}));
}

TEST(SharedMemory, NoTensorMayCoverTheOthers) {
  const std::vector<SharedMemory> all = shared({7, 6});
  ASSERT_EQ(all.size(), 1U);
  EXPECT_FALSE(all[0].holder);
  EXPECT_EQ(all[0].elements, 12);
  EXPECT_EQ(all[0].windows, (Windows{{0, 4}, {1, 0}}));
}

TEST(SharedMemory, OtherStoragesTypesAndTheProgramsOwnMemoryAreApart) {
  EXPECT_TRUE(shared({}).empty());
  EXPECT_TRUE(shared({0, 1}).empty());
  EXPECT_TRUE(shared({2, 5}).empty());
  EXPECT_TRUE(shared({6, 8}).empty());
}

}  // namespace
}  // namespace stepc
