#include "schedule/from_trace.h"

#include <gtest/gtest.h>

#include "ir/alignment.h"
#include "ir/trace.h"

namespace stepc {
namespace {

// A batch of the host's goes to the device; what a call makes there lives beside what it takes of the host's memory.
constexpr std::string_view kOnDevice = R"(stepc.trace 1
device cuda:0
storage s0 bytes=4096 external device
storage s1 bytes=1024 external
storage s2 bytes=1024 device
storage s3 bytes=1024 device
storage s4 bytes=4 escapes device
%0: f32[32, 32] @s0 = parameter "model.weight"
%1: f32[8, 32] @s1 = batch "0"
call 0 %2: f32[8, 32] @s2 = aten::_to_copy(%1, none, none, device:cuda:0) | forward ""
  alloc 1024 @s2 [1, 8) device
call 1 %3: f32[8, 32] @s3 = aten::mm(%2, %0) | forward "model"
  alloc 100 [3, 4)
  alloc 700 [4, 5) device
  alloc 1024 @s3 [5, 10) device
call 2 %4: f32[] @s4 = aten::sum(%3, dtype:f32) | forward ""
  alloc 4 @s4 [9, 12) kept device
return %4
ticks 12
)";

TEST(FromTrace, ADevicesPartOfTheArenaLiesBehindTheHosts) {
  const Trace trace = parse_trace(kOnDevice);
  verify(trace);
  EXPECT_EQ(to_text(trace), kOnDevice);
  const Schedule schedule = schedule_trace(trace, {}, 1);
  verify(schedule);
  EXPECT_EQ(schedule.device, "cuda:0");
  EXPECT_EQ(schedule.device_begin, kDeviceAlignment) << "behind 100 bytes of the host's";
  EXPECT_EQ(schedule.arena_bytes, kDeviceAlignment + 1024 + 1024) << "700 bytes take 1024, before the result is made";
  EXPECT_EQ(schedule.live_lower_bound_bytes, 128U + 2 * 1024);
  EXPECT_EQ(schedule.peak_bytes(), schedule.arena_bytes + 64);
  for (const Instruction& instruction : schedule.instructions)
    for (const PlannedAllocation& one : instruction.allocations) {
      if (one.own) continue;
      EXPECT_EQ(schedule.space_at(one.offset), one.space);
      if (one.space == Space::kDevice) {
        EXPECT_EQ(one.offset % kDeviceAlignment, 0U);
      }
    }
  EXPECT_EQ(parse_schedule(to_text(schedule)), schedule);
}

TEST(FromTrace, WithoutADeviceNothingSpeaksOfOne) {
  std::string text(kOnDevice);
  for (const auto& [from, to] : {std::pair<std::string, std::string>("device cuda:0\n", ""), {" device\n", "\n"}})
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from)) text.replace(at, from.size(), to);
  const Schedule schedule = schedule_trace(parse_trace(text), {}, 1);
  EXPECT_EQ(to_text(schedule).find("memory "), std::string::npos);
  EXPECT_EQ(schedule.device_begin, 0U);
}

}  // namespace
}  // namespace stepc
