#include <cmath>

#include <gtest/gtest.h>

#include "base/check.h"
#include "schedule/schedule.h"
#include "tests/expect_user_error.h"
#include "tests/schedule/random_schedule.h"
#include "tests/schedule/schedules.h"

namespace stepc {
namespace {

TEST(ScheduleText, RoundTrips) {
  const Schedule schedule = parse_schedule(kEveryLine);
  EXPECT_EQ(to_text(schedule), kEveryLine);
  EXPECT_EQ(parse_schedule(to_text(schedule)), schedule);
  EXPECT_EQ(to_text(parse_schedule(kTrainingStep)), kTrainingStep);
}

TEST(ScheduleText, SaysWhatTheLinesMean) {
  const Schedule schedule = parse_schedule(kEveryLine);
  EXPECT_TRUE(schedule.features.bf16);
  EXPECT_FALSE(schedule.features.f32);
  EXPECT_EQ(schedule.threads, 3);
  EXPECT_EQ(schedule.mesh.ranks(), 8);
  EXPECT_EQ(schedule.states, (std::vector<std::string>{"", std::string("\x00\xff", 2)}));
  EXPECT_EQ(schedule.buffers[3].content, "abcd");
  EXPECT_EQ(schedule.operands[0].strides, (Shape{8, 1}));
  EXPECT_EQ(schedule.operands[1].strides, (Shape{1, 8}));
  EXPECT_EQ(schedule.operands[1].offset, 2);
  EXPECT_TRUE(schedule.inputs[0].written);
  EXPECT_EQ(schedule.inputs[0].part->shape, (Shape{8, 8}));
  EXPECT_EQ(schedule.inputs[0].part->sharding.partial_over(1), ReduceOp::kSum);
  EXPECT_FALSE(schedule.inputs[1].part.has_value());
  EXPECT_TRUE(schedule.outputs[0].part->sharding.splits(0));
  const Instruction& aten = schedule.instructions[0];
  EXPECT_EQ(aten.aten->args[0], Arg(ValueId(0)));
  EXPECT_EQ(aten.aten->args[2], Arg(std::vector<ValueId>{ValueId(1), ValueId()}));
  EXPECT_EQ(aten.aten->worker_bytes, 128U);
  EXPECT_EQ(aten.allocations, (std::vector<PlannedAllocation>{{64, 128, false}, {100, 0, true}}));
  EXPECT_EQ(aten.scratch, (Scratch{256, 64}));
  EXPECT_EQ(aten.worker_scratch, (Scratch{512, 128}));
  EXPECT_EQ(aten.work, (Work{1e9, 0.5, 4096}));
  EXPECT_EQ(aten.call, CallId(17));
  const MatmulCall& matmul = *schedule.instructions[1].matmul;
  EXPECT_TRUE(matmul.transposed);
  EXPECT_EQ(matmul.products, (std::vector<MatmulCall::Product>{{1, true}, {2, false}}));
  EXPECT_EQ(matmul.epilogue_programs, (std::vector<uint32_t>{0, kNoProgram, kNoProgram, kNoProgram}));
  EXPECT_EQ(matmul.epilogue_outputs, (std::vector<TileBuffer>{{0, 8, 1, false}, {1, 0, 0, true}}));
  EXPECT_EQ(schedule.outputs[1].owner, InputKind::kOptimizerState);
  EXPECT_FALSE(schedule.outputs[2].operand.valid());
  EXPECT_EQ(schedule.host_numbers[1].inputs, (std::vector<uint32_t>{1, 0}));
  EXPECT_EQ(schedule.programs.at(0).phases.size(), 1U);
  EXPECT_EQ(schedule.nodes.at(schedule.instructions[20].nodes.value()).nodes.size(), 2U);
  for (size_t k = 0; k < 20; ++k) {
    const auto kind = static_cast<Instruction::Kind>(k);
    EXPECT_GE(schedule.count(kind), 1U) << name_of(kind) << " has no line";
  }
}

TEST(ScheduleText, NumbersAreKeptByTheirBits) {
  Schedule schedule;
  Instruction one;
  one.op = "aten::frob";
  one.aten.emplace().args = {0.1, -0.0, 1e300, 5e-324, -HUGE_VAL, std::vector<double>{1.0 / 3, 0.0}, INT64_MIN, NAN};
  one.work = {0.1 + 0.2, 1e-300, 1.7976931348623157e308};
  schedule.instructions.push_back(one);
  schedule.arena_bytes = UINT64_MAX;
  schedule.buffers.push_back({Buffer::Kind::kArena, UINT64_MAX, UINT64_MAX, 0, ""});
  Schedule back = parse_schedule(to_text(schedule));
  std::vector<Arg>& args = back.instructions[0].aten->args;
  EXPECT_TRUE(std::signbit(std::get<double>(args[1])));
  EXPECT_TRUE(std::isnan(std::get<double>(args.back())));
  args.pop_back();
  schedule.instructions[0].aten->args.pop_back();
  EXPECT_EQ(back, schedule);
}

TEST(ScheduleText, RandomSchedulesRoundTrip) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    const Schedule schedule = RandomSchedule(seed).make();
    const std::string text = to_text(schedule);
    const Schedule back = parse_schedule(text);
    ASSERT_EQ(back, schedule) << "seed " << seed << "\n" << text;
    ASSERT_EQ(to_text(back), text) << "seed " << seed;
  }
}

TEST(ScheduleText, HashIsOfWhatTheTextSays) {
  Schedule schedule = parse_schedule(kTrainingStep);
  const std::string hash = hash_of(schedule);
  EXPECT_EQ(hash.size(), 16U);
  EXPECT_EQ(hash_of(parse_schedule(kTrainingStep)), hash);
  schedule.instructions.back().why = "another reason";
  EXPECT_NE(hash_of(schedule), hash);
}

TEST(ScheduleText, HashLeavesOutWhichDeviceOfItsKindARankHas) {
  Schedule schedule = parse_schedule(kTrainingStep);
  const std::string on_cpu = hash_of(schedule);
  schedule.device = "cuda:0";
  const std::string text = to_text(schedule), on_first = hash_of(schedule);
  schedule.device = "cuda:1";
  EXPECT_NE(to_text(schedule), text);
  EXPECT_EQ(hash_of(schedule), on_first);
  EXPECT_NE(on_first, on_cpu);
}

TEST(ScheduleText, BadTextIsRefusedWithItsLine) {
  const auto expect = [](const std::string& lines, const std::string& message) {
    EXPECT_USER_ERROR(parse_schedule("stepc.schedule 1\n" + lines), message);
  };
  EXPECT_USER_ERROR(parse_schedule(""), "schedule text, line 0: expected 'stepc.schedule 1'");
  EXPECT_USER_ERROR(parse_schedule("stepc.schedule 2\n"), "schedule text, line 1");
  expect("hello\n", "schedule text, line 2: unknown line, at 'hello'");
  expect("features bf17\n", "there is no feature 'bf17'");
  expect("threads 0\n", "0 threads");
  expect("mesh dp=2\n", "line 2: ");
  expect("mesh tp=2\nmesh tp=2\n", "line 3: the mesh stands once, before inputs and outputs");
  expect("output return none part of <8/tp>\n", "the mesh has no axis 'tp'");
  expect("arena -1\n", "expected a number of 0 and up");
  expect("arena 18446744073709551616\n", "expected a number of 0 and up");
  expect("state 0\n", "a byte has two hexadecimal digits");
  expect("state xy\n", "expected hexadecimal digits");
  expect("buffer b1: own 4\n", "expected number 0");
  expect("buffer b0: friend 4\n", "'friend' is no kind of buffer");
  expect("buffer b0: own 4 more\n", "unexpected text at the end of the line");
  expect("operand %0: f32[2] in b0\n", "there is no buffer 0");
  const std::string buffer = "buffer b0: own 8\n";
  expect(buffer + "operand %0: f33[2] in b0\n", "line 3: expected a dtype");
  expect(buffer + "operand %0: f32[-2] in b0\n", "a shape is out of range");
  expect(buffer + "operand %0: f32[4294967296, 4294967296] in b0\n", "a shape is out of range");
  expect(buffer + "operand %0: f32[2](1, 1) in b0\n", "as many strides as sizes are needed");
  const std::string operand = buffer + "operand %0: f32[2] in b0\n";
  expect(operand + "input 0: friend \"x\" %0\n", "line 4: expected what kind of input this is");
  expect(operand + "input 0: batch \"x\" %1\n", "there is no operand 1");
  expect(operand + "i0: jump x () -> () | forward \"\"\n", "'jump' is no kind of instruction");
  expect(operand + "i1: op x () -> () | forward \"\"\n", "expected number 0");
  expect(operand + "i0: op x (%7) -> () | forward \"\"\n", "there is no operand 7");
  expect(operand + "i0: op x () -> ()\n", "expected '|'");
  expect(operand + "i0: op x () -> () | sideways \"\"\n", "expected a phase");
  expect(operand + "i0: op x () -> () {a=1, a=2} | forward \"\"\n", "'a' is given twice");
  expect(operand + "i0: aten x () -> () args(read(0, half)) | forward \"\"\n", "expected bool, int or double");
  expect(operand + "i0: aten x () -> () allocations [8] | forward \"\"\n", "where it is in the arena");
  expect("output friend none\n", "'friend' is no kind of output");
  expect("host call 4294967295 arg 0\n", "4294967295 is out of range");
  expect("program 1\n", "expected number 0");
  expect("program 0\n  hello\n", "program 0: loop text, line 1");
  expect("program 0\n  stepc.loops 1\n  buffer b0: f32 friend 4\nthreads 2\n", "'friend' is no kind of buffer");
}

TEST(ScheduleText, DamagedTextIsReadOrRefused) {
  const std::string good(kEveryLine);
  size_t refused = 0;
  const auto read = [&](const std::string& text) {
    try {
      const std::string taken = to_text(parse_schedule(text));
      EXPECT_EQ(to_text(parse_schedule(taken)), taken);
    } catch (const UserError& error) {
      ++refused;
      EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos) << error.what();
    }
  };
  for (size_t end = 0; end < good.size(); ++end) read(good.substr(0, end));
  for (size_t at = 0; at < good.size(); ++at) {
    std::string text = good;
    text[at] = "9(-\0"[at % 4];
    read(text);
  }
  EXPECT_GT(refused, good.size());
}

}  // namespace
}  // namespace stepc
