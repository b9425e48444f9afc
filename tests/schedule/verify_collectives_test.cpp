#include "schedule/verify_collectives.h"

#include <functional>

#include <gtest/gtest.h>

#include "base/check.h"

namespace stepc {
namespace {

// A rank's step: it gathers its parameter, sums up a gradient, scatters that, and adds in place.
constexpr std::string_view kRanks = R"(stepc.schedule 1
features none
threads 2
mesh dp_shard=2,tp=2
arena 2048
live bound 1024
layout "best_fit"
numbers 0
buffer b0: input 128 of 0
buffer b1: input 16 of 1
buffer b2: arena 256 at 0
buffer b3: arena 256 at 256
buffer b4: arena 256 at 256
buffer b5: arena 128 at 512
buffer b6: own 128
operand %0: f32[4, 8] in b0
operand %1: i64[2] in b1
operand %2: f32[2, 4, 8] in b2
operand %3: f32[2, 4, 8] in b3
operand %4: f32[2, 4, 8] in b4
operand %5: f32[4, 8] in b5
operand %6: f32[4, 8] in b6
operand %7: f32[8, 4](1, 8) in b5
operand %8: f32[8, 8] in b2
input 0: parameter "w" %0 part of <8/dp_shard, 8>
input 1: mesh "" %1
i0: collective all_gather (%0) -> (%2) {axes=[0], ranks=2} | forward ""
i1: op exp (%2) -> (%3) | forward ""
i2: collective all_reduce (%3) -> (%4) {axes=[1], ranks=2, reduce="sum"} scratch 128 at 1024 | backward ""
i3: collective reduce_scatter (%4) -> (%5) {axes=[0], ranks=2, reduce="sum"} scratch 128 at 1024 | backward ""
i4: copy copy (%5) -> (%6) | update ""
output return %6 part of <8/dp_shard, 8>
)";

void expect_refused(const std::string& what, const std::function<void(Schedule&)>& change) {
  Schedule schedule = parse_schedule(kRanks);
  change(schedule);
  try {
    verify(schedule);
    ADD_FAILURE() << "nothing was wrong; expected: " << what;
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
  }
}

TEST(VerifyCollectives, ARanksStepThatCouldRunIsGood) {
  verify(parse_schedule(kRanks));
  EXPECT_EQ(to_text(parse_schedule(kRanks)), kRanks);
}

TEST(VerifyCollectives, OperandsAreContiguousAndOfTheTypesThatTheRanksTakeAndMake) {
  expect_refused("i3 (collective reduce_scatter): ", [](Schedule& s) { s.instructions[3].writes[0] = OperandId(7); });
  expect_refused("%7 is not contiguous", [](Schedule& s) { s.instructions[3].writes[0] = OperandId(7); });
  expect_refused("%3 is not contiguous", [](Schedule& s) { s.operands[3].strides = {8, 16, 1}; });
  expect_refused("%8 is f32[8, 8] and the ranks make f32[2, 4, 8]",
                 [](Schedule& s) { s.instructions[0].writes[0] = OperandId(8); });
  expect_refused("f32[8, 8] has no part for each of 2 ranks",
                 [](Schedule& s) { s.instructions[3].reads[0] = OperandId(8); });
  expect_refused("writes a result for each operand, and has 1 for 2",
                 [](Schedule& s) { s.instructions[0].reads.emplace_back(1); });
  expect_refused("writes a result for each operand, and has 1 for 0",
                 [](Schedule& s) { s.instructions[3].reads.clear(); });
  expect_refused("has no operand", [](Schedule& s) { s.instructions[0].writes[0] = OperandId(); });
}

TEST(VerifyCollectives, AreRowsOfTheOpTable) {
  for (const char* op : {"exp", "reshard", "aten::all_reduce", ""})
    expect_refused("no collective", [&](Schedule& s) { s.instructions[0].op = op; });
  expect_refused("all_reduce needs the attribute 'reduce'", [](Schedule& s) {
    s.instructions[2].attrs = {{"axes", Shape{1}}, {"ranks", int64_t{2}}};
  });
  expect_refused("nothing reduces by 'mean'",
                 [](Schedule& s) { s.instructions[2].attrs.set("reduce", std::string("mean")); });
}

TEST(VerifyCollectives, GroupsAreAlongAxesOfTheMesh) {
  expect_refused("the mesh dp_shard=2,tp=2 has no axis 2",
                 [](Schedule& s) { s.instructions[0].attrs.set("axes", Shape{2}); });
  expect_refused("has no axis -1", [](Schedule& s) { s.instructions[0].attrs.set("axes", Shape{-1}); });
  expect_refused("axis 0 is named twice", [](Schedule& s) { s.instructions[0].attrs.set("axes", Shape{0, 0}); });
  expect_refused("the ranks of a group along axes [0, 1] of dp_shard=2,tp=2", [](Schedule& s) {
    s.instructions[0].attrs.set("axes", Shape{0, 1});
  });
  expect_refused("the ranks of a group", [](Schedule& s) { s.instructions[2].attrs.set("ranks", int64_t{3}); });
  expect_refused("a collective on one device", [](Schedule& s) {
    s.mesh = {};
    s.inputs[0].part.reset();
    s.outputs[0].part.reset();
    s.operands[1] = {s.operands[1].buffer, DType::kI64, {0}, {1}};
  });
}

TEST(VerifyCollectives, OnlyAnAllReduceIsInPlace) {
  const auto in_place = [](Schedule& s, const char* op) {
    s.instructions[2].op = op;
    s.instructions[2].attrs = {{"axes", Shape{1}}, {"ranks", int64_t{2}}};
  };
  expect_refused("b4 is written over b3", [&](Schedule& s) { in_place(s, "all_to_all"); });
  expect_refused("%3 is written where %3 is read", [&](Schedule& s) {
    in_place(s, "all_to_all");
    s.instructions[2].writes[0] = OperandId(3);
    s.instructions[3].reads[0] = OperandId(3);
  });
  expect_refused("b4 is written over b3", [](Schedule& s) { s.instructions[3].reads[0] = OperandId(3); });
}

TEST(VerifyCollectives, WhatAllRanksSendHasRoom) {
  expect_refused("its scratch", [](Schedule& s) { s.instructions[3].scratch.bytes = 127; });
  expect_refused("its scratch", [](Schedule& s) { s.instructions[2].scratch.bytes = 127; });
  expect_refused("scratch lies over b4", [](Schedule& s) { s.instructions[3].scratch.offset = 320; });
  expect_refused("its scratch leaves the arena", [](Schedule& s) { s.instructions[3].scratch.offset = 2000; });
}

TEST(VerifyCollectives, OneStreamGivesOneOrder) {
  const auto beside = [](Schedule& s, size_t i, uint32_t stream) {
    s.instructions[i].stream = stream;
    s.instructions[i].mark = stream;
  };
  expect_refused("i3 (collective reduce_scatter): ", [&](Schedule& s) { beside(s, 0, 1), beside(s, 3, 2); });
  expect_refused("have no one order", [&](Schedule& s) { beside(s, 0, 1), beside(s, 3, 2); });
  expect_refused("no wait stands between", [](Schedule& s) { s.instructions[0].stream = 1; });
}

TEST(VerifyCollectives, PartsAreWhatTheySay) {
  expect_refused("input 0 is f32[4, 8], and a rank's part of <8/dp_shard, 8/tp> is [4, 4]", [](Schedule& s) {
    s.inputs[0].part->sharding.dims[1] = canonical({{8, {1}}}, s.mesh);
  });
  expect_refused("output 0 is a part of something of other dimensions",
                 [](Schedule& s) { s.outputs[0].part->shape = {8}; });
  expect_refused("an axis of the mesh", [](Schedule& s) { s.mesh = {}; });
}

TEST(VerifyCollectives, ARankKnowsWhereItStands) {
  expect_refused("input 1, the rank's place on the mesh dp_shard=2,tp=2, is a i64[1]",
                 [](Schedule& s) { s.operands[1].sizes = {1}; });
  expect_refused("input 1, the rank's place on the mesh dp_shard=2,tp=2, is a f64[2]",
                 [](Schedule& s) { s.operands[1].dtype = DType::kF64; });
  expect_refused("input 1 is the rank's place alone", [](Schedule& s) { s.inputs[1].written = true; });
  expect_refused("i5 (copy ) changes where the rank stands", [](Schedule& s) {
    Instruction& copy = s.instructions.emplace_back();
    copy.kind = Instruction::Kind::kCopy;
    copy.reads = copy.writes = {OperandId(1)};
  });
  expect_refused("input 1, the rank's place", [](Schedule& s) {
    s.operands[1].buffer = BufferId(5);
    s.buffers[1].input = 0;
    s.buffers[1].kind = Buffer::Kind::kOwn;
  });
}

}  // namespace
}  // namespace stepc
