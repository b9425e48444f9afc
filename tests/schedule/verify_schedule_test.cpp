#include <functional>

#include <gtest/gtest.h>

#include "base/check.h"
#include "schedule/schedule.h"
#include "tests/schedule/schedules.h"

namespace stepc {
namespace {

using Kind = Instruction::Kind;

void expect_broken(const std::string& what, const std::function<void(Schedule&)>& change) {
  Schedule schedule = parse_schedule(kTrainingStep);
  change(schedule);
  try {
    verify(schedule);
    ADD_FAILURE() << "nothing was wrong; expected: " << what;
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
  }
}

Instruction& append(Schedule& schedule, Kind kind) {
  Instruction& one = schedule.instructions.emplace_back();
  one.kind = kind;
  return one;
}

TEST(ScheduleVerify, AStepThatCanRunIsGood) { verify(parse_schedule(kTrainingStep)); }

TEST(ScheduleVerify, Sizes) {
  const Schedule schedule = parse_schedule(kTrainingStep);
  EXPECT_EQ(schedule.own_bytes(), 256U);
  EXPECT_EQ(schedule.input_bytes(), 384U);
  EXPECT_EQ(schedule.peak_bytes(), 1024U + 256);
  EXPECT_EQ(schedule.needed_bytes(), 1024U + 256 + 384);
  EXPECT_EQ(schedule.count(Kind::kAten), 3U);
  EXPECT_FALSE(draws(schedule));
  EXPECT_TRUE(draws(parse_schedule(kEveryLine)));
  // What stands beside the program's tensors does not count as theirs.
  Schedule other = schedule;
  other.inputs[1].kind = InputKind::kScalar;
  other.buffers[5].bytes = 1;
  EXPECT_EQ(other.input_bytes(), 256U);
  EXPECT_EQ(other.own_bytes(), 64U);

  EXPECT_EQ(extent_of(Operand{BufferId(0), DType::kF32, {4, 8}, {1, 8}, 2}), 2 + 3 + 7 * 8 + 1);
  EXPECT_EQ(bytes_of(Operand{BufferId(0), DType::kF32, {4, 8}, {1, 8}, 2}), 128);
  EXPECT_EQ(extent_of(Operand{BufferId(0), DType::kF32, {4, 0}, {1, 8}, 2}), 0);
  EXPECT_EQ(extent_of(Operand{BufferId(0), DType::kF32, {}, {}, 2}), 3);
  EXPECT_EQ(extent_of(Operand{BufferId(0), DType::kF32, {5}, {0}, 0}), 1);
  EXPECT_THROW(extent_of(Operand{BufferId(0), DType::kF32, {INT64_MAX}, {INT64_MAX}, 0}), InternalError);
}

TEST(ScheduleVerify, EachMemoryHasItsPartOfTheArena) {
  expect_broken("b5 is a device's, and there is none", [](Schedule& s) { s.buffers[5].space = Space::kDevice; });
  expect_broken("the memory of 'cuda:0' begins at 4096", [](Schedule& s) {
    s.device = "cuda:0";
    s.device_begin = 4096;
  });
  expect_broken("lies in the other memory", [](Schedule& s) { s.device = "cuda:0"; });
}

TEST(ScheduleVerify, IdsAreInRange) {
  expect_broken("the buffer of %3", [](Schedule& s) { s.operands[3].buffer = BufferId(99); });
  expect_broken("the operand of input 1", [](Schedule& s) { s.inputs[1].operand = OperandId(); });
  expect_broken("i3 (op sum) has no operand 77", [](Schedule& s) { s.instructions[3].reads[0] = OperandId(77); });
  expect_broken("i3 (op sum) has no operand", [](Schedule& s) { s.instructions[3].writes[0] = OperandId(); });
  expect_broken("output 0", [](Schedule& s) { s.outputs[0].operand = OperandId(10); });
  expect_broken("a program of i2", [](Schedule& s) { s.instructions[2].program = 1; });
  expect_broken("a program of i2", [](Schedule& s) { s.instructions[2].program = kNoProgram; });
  expect_broken("the generator of i0", [](Schedule& s) { s.instructions[0].generator = 1; });
  expect_broken("the state of i0", [](Schedule& s) { s.instructions[0].state = 1; });
  expect_broken("the number of i6", [](Schedule& s) { s.instructions[6].number = 1; });
  expect_broken("a number that i8", [](Schedule& s) { s.instructions[8].aten->args[3] = ReadNumber{CallId(1)}; });
  expect_broken("i8 (aten aten::frob)", [](Schedule& s) { s.instructions[8].aten->args[0] = ValueId(3); });
  expect_broken("i8 (aten aten::frob)", [](Schedule& s) { s.instructions[8].aten->results[0] = ValueId(2); });
  expect_broken("what i10", [](Schedule& s) { s.instructions[10].aten->writes[0] = 2; });
  expect_broken("a layout of i10", [](Schedule& s) { s.instructions[10].aten->layouts = {{2, {1}}}; });
  expect_broken("output 4", [](Schedule& s) { s.outputs[4].value = ReadNumber{CallId(1)}; });
  expect_broken("where a host number goes", [](Schedule& s) { s.host_numbers[0].instruction = 11; });
  expect_broken("argument 2 of i9", [](Schedule& s) { s.host_numbers[0].instruction = 9; });
  expect_broken("argument 3 of i10", [](Schedule& s) { s.host_numbers[0].arg = 3; });
  expect_broken("where a host number goes", [](Schedule& s) { s.host_numbers[0].inputs = {2}; });
  expect_broken("b0", [](Schedule& s) { s.buffers[0].input = 2; });
  expect_broken("input 1 does not lie in b0", [](Schedule& s) { s.buffers[0].input = 1; });
  expect_broken("0 threads", [](Schedule& s) { s.threads = 0; });
}

TEST(ScheduleVerify, WindowsLieInTheirBuffers) {
  expect_broken("%0 leaves b0 of 255 bytes", [](Schedule& s) { s.buffers[0].bytes = 255; });
  expect_broken("%0 leaves b0", [](Schedule& s) { s.operands[0].offset = 1; });
  expect_broken("%0 leaves b0", [](Schedule& s) { s.operands[0].offset = -1; });
  expect_broken("%0 leaves b0", [](Schedule& s) { s.operands[0].strides[0] = 9; });
  expect_broken("%0 leaves b0", [](Schedule& s) { s.operands[0].strides[0] = -1; });
  expect_broken("%0 leaves b0", [](Schedule& s) { s.operands[0].strides[0] = INT64_MAX; });
  expect_broken("%0 leaves b0", [](Schedule& s) { s.operands[0].offset = INT64_MAX; });
  expect_broken("%0 has a size of -8", [](Schedule& s) { s.operands[0].sizes[0] = -8; });
  expect_broken("%0 has a size of", [](Schedule& s) { s.operands[0].sizes[0] = INT64_MAX; });
  expect_broken("sizes and strides of %0", [](Schedule& s) { s.operands[0].strides.pop_back(); });
  expect_broken("the content of b6", [](Schedule& s) { s.buffers[6].content += "x"; });
  expect_broken("input 1, batch '0', is in a buffer of kind own",
                [](Schedule& s) { s.buffers[1].kind = Buffer::Kind::kOwn; });
  // Negative strides are good where they stay inside.
  Schedule schedule = parse_schedule(kTrainingStep);
  schedule.operands[0].strides = {8, -1};
  schedule.operands[0].offset = 7;
  verify(schedule);
  // Nor does a tensor without elements reach anything.
  schedule.operands[8].offset = 1000;
  verify(schedule);
}

TEST(ScheduleVerify, WhatIsReadWasWritten) {
  expect_broken("i1 (generated exp) reads %2 in b2, which nothing wrote",
                [](Schedule& s) { std::swap(s.instructions[1], s.instructions[2]); });
  expect_broken("output 2 is in b5, which nothing wrote", [](Schedule& s) {
    s.instructions.pop_back();
    s.host_numbers.clear();
    s.instructions[8].writes.erase(s.instructions[8].writes.begin());
    s.instructions[8].aten->results = {ValueId(0)};
  });
  expect_broken("reads %8 in b8, which nothing wrote", [](Schedule& s) {
    s.buffers[8] = {Buffer::Kind::kOwn, 4, 0, 0, ""};
  });
}

TEST(ScheduleVerify, WhatTheProgramKeepsIsNotTheStepsMemory) {
  expect_broken("output 0 is in b3 of kind arena", [](Schedule& s) { s.outputs[0].operand = OperandId(3); });
  expect_broken("output 2 is in b9 of kind arena", [](Schedule& s) { s.outputs[2].operand = OperandId(9); });
  expect_broken("output 0 is in b6 of kind constant", [](Schedule& s) { s.outputs[0].operand = OperandId(6); });
  expect_broken("output 3 is a number", [](Schedule& s) { s.outputs[3].operand = OperandId(1); });
}

TEST(ScheduleVerify, InstructionsSayWhatTheirKindNeeds) {
  expect_broken("i1 (matmul matmul) says no matmul", [](Schedule& s) { s.instructions[1].matmul.reset(); });
  expect_broken("the left operand of i1", [](Schedule& s) { s.instructions[1].matmul->left = 2; });
  expect_broken("a right operand of i1", [](Schedule& s) { s.instructions[1].matmul->products[0].right = 2; });
  expect_broken("i1 (matmul matmul) has no product", [](Schedule& s) { s.instructions[1].matmul->products.clear(); });
  expect_broken("products of i1", [](Schedule& s) { s.instructions[1].matmul->products.push_back({}); });
  expect_broken("an input of the epilogue of i1",
                [](Schedule& s) { s.instructions[1].matmul->epilogue_inputs = {{2}}; });
  expect_broken("an output of the epilogue of i1",
                [](Schedule& s) { s.instructions[1].matmul->epilogue_outputs = {{1}}; });
  expect_broken("epilogues of i1", [](Schedule& s) { s.instructions[1].matmul->epilogue_programs = {0}; });
  expect_broken("a program of i1", [](Schedule& s) { s.instructions[1].matmul->epilogue_programs = {1, 0, 0, 0}; });
  expect_broken("outputs of the epilogue of i1",
                [](Schedule& s) { s.instructions[1].matmul->epilogue_programs.assign(kTileKinds, 0); });
  expect_broken("inputs of the epilogue of i1", [](Schedule& s) {
    s.instructions[1].matmul->epilogue_programs.assign(kTileKinds, 0);
    s.instructions[1].matmul->epilogue_inputs = {{0}};
  });
  expect_broken("inputs of the program of i2", [](Schedule& s) { s.instructions[2].reads.emplace_back(0); });
  expect_broken("outputs of the program of i2", [](Schedule& s) { s.instructions[2].writes.clear(); });
  expect_broken("the scratch of i2", [](Schedule& s) { s.programs[0].scratch_bytes = 64; });
  expect_broken("i2 (generated exp): its program goes past the end of b2 from %2", [](Schedule& s) {
    s.operands[2].sizes = {1};
    s.operands[2].strides = {1};
    s.operands[2].offset = 1;
  });
  expect_broken("i8 (aten aten::frob) has no arguments", [](Schedule& s) { s.instructions[8].aten.reset(); });
  expect_broken("i9 (copy ) copies something", [](Schedule& s) { s.instructions[9].reads[0] = OperandId(4); });
  expect_broken("i9 (copy ) copies something", [](Schedule& s) { s.instructions[9].reads.clear(); });
  expect_broken("i7 (guard ) looks at neither", [](Schedule& s) { s.instructions[7].number.reset(); });
  expect_broken("i5 (guard ) looks at neither", [](Schedule& s) { s.instructions[5].reads[0] = OperandId(4); });
  for (const Kind kind : {Kind::kGuard, Kind::kSaveGenerator, Kind::kLoadGenerator})
    expect_broken("writes something", [&](Schedule& s) { append(s, kind).writes = {OperandId(5)}; });
  expect_broken("what i11 (seed ) writes", [](Schedule& s) { append(s, Kind::kSeed); });
  expect_broken("i11 (seed ) writes %5, which is no place for a seed",
                [](Schedule& s) { append(s, Kind::kSeed).writes = {OperandId(5)}; });
  expect_broken("a host number goes to input 0, parameter 'weight'",
                [](Schedule& s) { s.host_numbers[0].inputs = {0}; });
  for (const Kind kind : {Kind::kSend, Kind::kReceive, Kind::kCall})
    expect_broken("nothing runs this yet", [&](Schedule& s) { append(s, kind); });
  for (const Kind kind : {Kind::kWait, Kind::kRecord})
    expect_broken("has no mark", [&](Schedule& s) { append(s, kind).stream = 1; });
}

TEST(ScheduleVerify, EverythingEndsInTheArena) {
  expect_broken("i8 (aten aten::frob): b9 leaves the arena", [](Schedule& s) { s.buffers[9].offset = 960; });
  expect_broken("i8 (aten aten::frob): b9 leaves the arena",
                [](Schedule& s) { s.buffers[9].offset = UINT64_MAX - 63; });
  expect_broken("b9 is not aligned", [](Schedule& s) { s.buffers[9].offset = 300; });
  expect_broken("an allocation at 1024 leaves", [](Schedule& s) { s.instructions[8].allocations[1].offset = 1024; });
  expect_broken("i1 (matmul matmul): its scratch leaves",
                [](Schedule& s) { s.instructions[1].scratch.bytes = UINT64_MAX; });
  expect_broken("i8 (aten aten::frob): its scratch leaves",
                [](Schedule& s) { s.instructions[8].worker_scratch.bytes = 257; });
  expect_broken("i8 (aten aten::frob): its scratch leaves",
                [](Schedule& s) { s.instructions[8].worker_scratch.bytes = UINT64_MAX / 2 + 1; });
  expect_broken("the arena is too small", [](Schedule& s) { s.live_lower_bound_bytes = 1025; });
  // Without workers their scratch takes nothing.
  Schedule schedule = parse_schedule(kTrainingStep);
  schedule.threads = 1;
  schedule.instructions[8].worker_scratch = {0, 4096};
  verify(schedule);
}

TEST(ScheduleVerify, WhatLivesAtOnceLiesApart) {
  // The sum is needed until the end of the step, the exponentials until i8.
  expect_broken("i8 (aten aten::frob): b9 is written over b4, which lives from i3 to the end", [](Schedule& s) {
    s.buffers[9].offset = 128;
    s.instructions[8].allocations[2].offset = 128;
  });
  expect_broken("i4 (op lt): b7 is written over b3, which lives from i2 to i8",
                [](Schedule& s) { s.buffers[7].offset = 64; });
  expect_broken("i1 (matmul matmul): scratch lies over b2", [](Schedule& s) { s.instructions[1].scratch.offset = 64; });
  expect_broken("i8 (aten aten::frob): the workers' scratch lies over b3",
                [](Schedule& s) { s.instructions[8].worker_scratch.offset = 0; });
  expect_broken("i8 (aten aten::frob): the workers' scratch lies over b9",
                [](Schedule& s) { s.instructions[8].worker_scratch.offset = 320; });
  expect_broken("i8 (aten aten::frob): an allocation at 0 lies over b3",
                [](Schedule& s) { s.instructions[8].allocations[1].offset = 0; });
  expect_broken("i1 (matmul matmul): scratch and the workers' scratch overlap", [](Schedule& s) {
    s.instructions[1].worker_scratch = {192, 64};
  });
  // What one instruction writes lies apart too, and what it writes from what it reads for the last time.
  expect_broken("i8 (aten aten::frob): b9 is written over b3", [](Schedule& s) { s.buffers[9].offset = 64; });
  // A second write prolongs a life, and a buffer without readers lives while it is written.
  expect_broken("i4 (op lt): b7 is written over b2, which lives from i1 to i9", [](Schedule& s) {
    s.buffers[2].offset = 320;
    s.instructions[9].writes[0] = OperandId(2);
    s.buffers[7].offset = 320;
  });
}

TEST(ScheduleVerify, AWriteMayTakeOverARead) {
  // i2 writes b3 over b2, as its program says it may.
  expect_broken("i2 (generated exp): b3 is written over b2", [](Schedule& s) { s.programs[0].in_place.clear(); });
  expect_broken("i2 (generated exp): b3 is written over b2, which lives from i1 to i4",
                [](Schedule& s) { s.instructions[4].reads[1] = OperandId(2); });
  expect_broken("i2 (generated exp): b3 is written over b2", [](Schedule& s) {
    s.buffers[2].offset = 64;
    s.instructions[1].scratch.offset = 512;
  });
  expect_broken("i2 (attention exp): b3 is written over b2",
                [](Schedule& s) { s.instructions[2].kind = Kind::kAttention; });
  for (const Kind kind : {Kind::kOp, Kind::kCopy}) {
    Schedule schedule = parse_schedule(kTrainingStep);
    schedule.instructions[2].kind = kind;
    verify(schedule);
  }
  // What is left of the memory that was read is read until the instruction ends.
  expect_broken("i2 (op exp): b9 is written over b2", [](Schedule& s) {
    s.instructions[2].kind = Kind::kOp;
    s.buffers[2].bytes = 256;
    s.buffers[4].offset = 256;
    s.buffers[7].offset = 320;
    s.buffers[9].offset = 192;
    s.instructions[2].writes.emplace_back(9);
    s.instructions[1].scratch.offset = 512;
  });
  // One read's memory is taken once.
  expect_broken("i2 (op exp): b9 is written over b3", [](Schedule& s) {
    s.instructions[2].kind = Kind::kOp;
    s.buffers[9].offset = 0;
    s.instructions[2].writes.emplace_back(9);
  });
}

TEST(ScheduleVerify, WhatNothingUsesMayLieAnywhere) {
  Schedule schedule = parse_schedule(kTrainingStep);
  schedule.buffers.push_back({Buffer::Kind::kArena, 4096, 4, 0, ""});
  schedule.operands.push_back({BufferId(10), DType::kF32, {4}, {1}, 0});
  verify(schedule);
}

TEST(ScheduleVerify, HostCodeMayBeGivenNothing) {
  Schedule schedule = parse_schedule(kTrainingStep);
  append(schedule, Kind::kEvent).reads = {OperandId(), OperandId(5)};
  verify(schedule);
  expect_broken("has no operand 10", [](Schedule& s) { append(s, Kind::kPause).reads = {OperandId(10)}; });
}

TEST(ScheduleVerify, HostCodeKnowsOnlyTheProgramsMemory) {
  for (const Kind kind : {Kind::kEvent, Kind::kPause}) {
    expect_broken("gives %9 away, which is in the arena", [&](Schedule& s) { append(s, kind).reads = {OperandId(9)}; });
    expect_broken("changes %5, which is not the program's",
                  [&](Schedule& s) { append(s, kind).writes = {OperandId(5)}; });
  }
  expect_broken("the generator of i11", [](Schedule& s) {
    append(s, Kind::kSeed).writes = {OperandId(5)};
    s.instructions.back().generator = 1;
  });
}

TEST(ScheduleVerify, IncomingTensorsAreReadBehindThePause) {
  const auto incoming = [](Schedule& s) { s.inputs[1].kind = InputKind::kIncoming; };
  expect_broken("i1 (matmul matmul) reads %1 in b1, which nothing wrote", incoming);
  Schedule schedule = parse_schedule(kTrainingStep);
  incoming(schedule);
  Instruction pause;
  pause.kind = Kind::kPause;
  pause.writes = {OperandId(1)};
  schedule.instructions.insert(schedule.instructions.begin(), pause);
  schedule.host_numbers.clear();
  verify(schedule);
}

// Near linear: as many instructions as a large model's step has, with many buffers alive at once.
TEST(ScheduleVerify, LargeSchedules) {
  Schedule schedule;
  constexpr size_t kCount = 60'000;
  constexpr size_t kAlive = 5'000;
  schedule.arena_bytes = 64 * (kAlive + 1);
  for (size_t k = 0; k < kCount; ++k) {
    schedule.buffers.push_back({Buffer::Kind::kArena, 64, 64 * (k % (kAlive + 1)), 0, ""});
    schedule.operands.push_back({BufferId(k), DType::kF32, {16}, {1}, 0});
    Instruction& one = schedule.instructions.emplace_back();
    one.op = "exp";
    one.writes = {OperandId(k)};
    if (k >= kAlive) one.reads = {OperandId(k - kAlive)};
  }
  verify(schedule);
  schedule.instructions.back().reads = {OperandId(kCount - kAlive - 3)};
  EXPECT_THROW(verify(schedule), InternalError);
}

}  // namespace
}  // namespace stepc
