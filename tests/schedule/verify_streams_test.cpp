// Schedules whose streams share memory without a wait between, one broken promise each.
#include "schedule/verify_streams.h"

#include <functional>

#include <gtest/gtest.h>

#include "base/check.h"
#include "schedule/schedule.h"

namespace stepc {
namespace {

// A gather goes on beside an elementwise op; then both results are used.
constexpr const char* kBeside = R"(stepc.schedule 1
features none
threads 1
mesh dp_shard=2
arena 1024
live bound 1024
layout "best_fit"
numbers 0
buffer b0: input 128 of 0
buffer b1: arena 256 at 0
buffer b2: arena 256 at 0
buffer b3: arena 128 at 256
buffer b4: own 128
operand %0: f32[32] in b0
operand %1: f32[2, 32] in b1
operand %2: f32[2, 32] in b2
operand %3: f32[32] in b3
operand %4: f32[32] in b4
operand %5: f32[32] in b2
input 0: parameter "w" %0
i0: collective all_gather (%0) -> (%1) {axes=[0], ranks=2} stream 1 mark 0 | forward ""
i1: op exp (%0) -> (%3) | forward ""
i2: wait wait (%1, %0) -> (%2) mark 0 | forward ""
i3: op add (%3, %5) -> (%4) | forward ""
output return %4
)";

void expect_streams_refused(const std::string& what, const std::function<void(Schedule&)>& change) {
  Schedule schedule = parse_schedule(kBeside);
  change(schedule);
  try {
    verify_streams(schedule);
    ADD_FAILURE() << "nothing was wrong; expected: " << what;
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
  }
}

TEST(VerifyStreams, AnExchangeMayGoOnBesideOthers) {
  verify(parse_schedule(kBeside));
  EXPECT_EQ(to_text(parse_schedule(kBeside)), kBeside);
}

TEST(VerifyStreams, ResultsAreReadBehindTheWait) {
  expect_streams_refused("i1 (op exp) uses memory that i0 uses on stream 1, and no wait stands between them",
                         [](Schedule& s) { s.instructions[1].reads[0] = OperandId(5); });
  expect_streams_refused("i1 (op exp) uses memory", [](Schedule& s) { s.buffers[3].offset = 128; });
  expect_streams_refused("i1 (op exp) uses memory", [](Schedule& s) { s.instructions[1].scratch = {0, 64}; });
}

TEST(VerifyStreams, OperandsAreChangedBehindTheWait) {
  expect_streams_refused("i1 (op exp) uses memory that i0 uses on stream 1",
                         [](Schedule& s) { s.instructions[1].writes[0] = OperandId(0); });
}

TEST(VerifyStreams, MarksAreReachedOnceAndWaitedFor) {
  expect_streams_refused("the step ends before what i0 has begun", [](Schedule& s) {
    s.instructions.erase(s.instructions.begin() + 2);
    s.instructions[2].reads[1] = OperandId(3);
  });
  expect_streams_refused("waits for mark 7, which nothing before it reaches",
                         [](Schedule& s) { s.instructions[2].mark = 7; });
  expect_streams_refused("i1 (collective all_gather) reaches mark 0 once more", [](Schedule& s) {
    s.instructions[1] = s.instructions[0];
    s.operands.push_back({s.operands[3].buffer, DType::kF32, {2, 16}, {16, 1}, 0});
  });
  expect_streams_refused("has no mark", [](Schedule& s) { s.instructions[2].mark.reset(); });
  expect_streams_refused("has a mark", [](Schedule& s) { s.instructions[1].mark = 3; });
  expect_streams_refused("on the stream that waits for it", [](Schedule& s) { s.instructions[0].stream = 0; });
}

TEST(VerifyStreams, AWaitHoldsAllThatTheExchangeUses) {
  expect_streams_refused("does not read what i0 writes and reads",
                         [](Schedule& s) { s.instructions[2].reads.pop_back(); });
  expect_streams_refused("moves %1", [](Schedule& s) { s.instructions[2].writes[0] = OperandId(3); });
}

TEST(VerifyStreams, ADecisionFindsNoExchangeOnItsWay) {
  expect_streams_refused("i1 (guard guard) stands before the wait for i0", [](Schedule& s) {
    s.instructions[1].kind = Instruction::Kind::kGuard;
    s.instructions[1].op = "guard";
  });
}

TEST(VerifyStreams, RecordsOrderStreams) {
  Schedule schedule = parse_schedule(kBeside);
  Instruction record;
  record.kind = Instruction::Kind::kRecord;
  record.op = "record";
  record.mark = 1;
  Instruction wait = record;
  wait.kind = Instruction::Kind::kWait;
  wait.op = "wait";
  wait.stream = 2;
  schedule.instructions[1].stream = 2;
  schedule.instructions.insert(schedule.instructions.begin() + 2, record);
  schedule.instructions[2].stream = 2;
  Instruction join = wait;
  join.stream = 0;
  schedule.instructions.insert(schedule.instructions.begin() + 3, join);
  verify_streams(schedule);
  schedule.instructions.erase(schedule.instructions.begin() + 3);
  EXPECT_THROW(verify_streams(schedule), InternalError) << "nobody waits for what stream 2 has made";
}

}  // namespace
}  // namespace stepc
