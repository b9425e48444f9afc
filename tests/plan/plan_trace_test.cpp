// The Schedule of recorded calls, and the work that each of them is.
#include "plan/plan_trace.h"

#include <string>

#include <gtest/gtest.h>

namespace stepc {
namespace {

// y = relu(x @ w^T); w is scaled in place; returns sum(y)
constexpr std::string_view kStep = R"(stepc.trace 1
storage s0 bytes=64 external
storage s1 bytes=64 external
storage s2 bytes=64
storage s3 bytes=64
storage s4 bytes=4 escapes
%0: f32[4, 4] @s0 = parameter "w"
%1: f32[4, 4] @s1 = batch "0"
call 0 %2: f32[4, 4](1, 4) @s0 = aten::t(%0) | forward "layer"
call 1 %3: f32[4, 4] @s2 = aten::mm(%1, %2) | forward "layer"
  alloc 64 @s2 [1, 6)
call 2 %4: f32[4, 4] @s3 = aten::relu(%3) | forward "layer"
  alloc 64 @s3 [4, 9)
call 3 %5: f32[] @s4 = aten::sum(%4, none) | forward ""
  alloc 4 @s4 [7, 12) kept
call 4 %0 = aten::mul_.Tensor(%0, number(0.5)) writes %0 | update "layer"
  alloc 4 [11, 12)
return %5
ticks 12
)";

TEST(PlanTrace, EveryInstructionSaysItsWork) {
  const Schedule schedule = plan_trace(parse_trace(kStep), 2);
  verify(schedule);
  ASSERT_EQ(schedule.instructions.size(), 4U) << "the view does not run";
  EXPECT_EQ(schedule.instructions[0].work, (Work{.flops = 2 * 4 * 4 * 4, .bytes = 3 * 64}));
  EXPECT_EQ(schedule.instructions[1].work.bytes, 2 * 64);
  EXPECT_EQ(schedule.instructions[2].work.bytes, 64 + 4);
  EXPECT_EQ(schedule.instructions[3].work.bytes, 2 * 64) << "what is changed is read and written";
  EXPECT_EQ(parse_schedule(to_text(schedule)), schedule);
}

TEST(PlanTrace, ACallWithoutARowIsItsTraffic) {
  std::string text(kStep);
  for (size_t at; (at = text.find("aten::relu(")) != std::string::npos;) text.replace(at, 11, "my::op(");
  const Schedule schedule = plan_trace(parse_trace(text), 2);
  EXPECT_EQ(schedule.instructions[1].op, "my::op");
  EXPECT_EQ(schedule.instructions[1].work, (Work{.bytes = 2 * 64}));

  const size_t at = text.find("my::op(%3)") + 10;
  const std::string begin = text.substr(0, at), end = text.substr(at);
  const auto work_with = [&](const std::string& rule) {
    return plan_trace(parse_trace(begin + rule + end), 2).instructions[1].work;
  };
  EXPECT_EQ(work_with(" rule flops 32.0"), (Work{.flops = 32, .bytes = 2 * 64}));
  EXPECT_EQ(work_with(" rule flops 32.0 bytes 7.0"), (Work{.flops = 32, .bytes = 7}));
}

}  // namespace
}  // namespace stepc
