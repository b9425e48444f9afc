// Guards whose answers lie on the emulated device, which has a copy on the host only once the host has waited for it.
#include "runtime/device_guards.h"

#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include "tests/device/open_emulated_device.h"

namespace stepc {
namespace {

constexpr const char* kDevice = "privateuseone:0";

// Two guards, work in the arena, the update of a parameter, work in the arena, another guard, host code.
Schedule guarded() {
  Schedule schedule;
  schedule.device = kDevice;
  ScheduleInput parameter;
  parameter.kind = InputKind::kParameter;
  schedule.inputs.push_back(parameter);
  const auto add_buffer = [&](Buffer::Kind kind, uint64_t bytes) {
    Buffer& buffer = schedule.buffers.emplace_back();
    buffer.kind = kind;
    buffer.bytes = bytes;
    buffer.space = Space::kDevice;
  };
  add_buffer(Buffer::Kind::kInput, 4);
  add_buffer(Buffer::Kind::kArena, 4);
  add_buffer(Buffer::Kind::kArena, 1);
  schedule.operands = {{.buffer = BufferId(0), .sizes = {}, .strides = {}},
                       {.buffer = BufferId(1), .sizes = {}, .strides = {}},
                       {.buffer = BufferId(2), .dtype = DType::kBool, .sizes = {}, .strides = {}}};
  const auto add = [&](Instruction::Kind kind, std::vector<OperandId> reads, std::vector<OperandId> writes) {
    Instruction one;
    one.kind = kind;
    one.reads = std::move(reads);
    one.writes = std::move(writes);
    schedule.instructions.push_back(std::move(one));
  };
  const OperandId weight(0), work(1), answer(2);
  add(Instruction::Kind::kGuard, {answer}, {});
  add(Instruction::Kind::kGuard, {answer}, {});
  add(Instruction::Kind::kOp, {weight}, {work});
  add(Instruction::Kind::kOp, {work}, {weight});
  add(Instruction::Kind::kOp, {weight}, {work});
  add(Instruction::Kind::kGuard, {answer}, {});
  add(Instruction::Kind::kOp, {weight}, {work});
  add(Instruction::Kind::kEvent, {}, {});
  add(Instruction::Kind::kOp, {work}, {weight});
  return schedule;
}

TEST(DeviceGuards, AreLookedAtBeforeWhatCannotBeUndone) {
  if (emulated_device() == nullptr) GTEST_SKIP() << "there is no emulated device in this build";
  DeviceGuards guards(guarded());
  EXPECT_EQ(guards.effects(), (std::set<size_t>{3, 7}));
  const at::Tensor yes = at::ones({}, at::kBool).to(c10::Device(kDevice)), no = at::zeros_like(yes);
  guards.begin_run();
  EXPECT_FALSE(guards.must_look(3)) << "nothing is asked for";
  guards.ask(yes);
  guards.ask(no);
  EXPECT_FALSE(guards.must_look(2));
  EXPECT_TRUE(guards.must_look(3));
  EXPECT_FALSE(guards.hold()) << "one of them does not";
  EXPECT_FALSE(guards.must_look(3)) << "the answers are known";
  guards.begin_run();
  guards.ask(yes);
  guards.ask(yes);
  EXPECT_TRUE(guards.hold());
  guards.ask(no);
  EXPECT_TRUE(guards.must_look(7));
  EXPECT_FALSE(guards.hold());
  EXPECT_TRUE(guards.hold()) << "none is open";
}

}  // namespace
}  // namespace stepc
