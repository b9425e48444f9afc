// Schedules of one rank's step: what collectives become of, on small steps by hand and on random ones.
#include <algorithm>

#include <gtest/gtest.h>

#include "base/check.h"
#include "base/text.h"
#include "ir/alignment.h"
#include "ops/communication.h"
#include "schedule/from_graph.h"
#include "tests/schedule/random_step.h"

namespace stepc {
namespace {

using Kind = Instruction::Kind;
using Memory = Buffer::Kind;

constexpr Features kEvery{.bf16 = true, .f32 = true, .avx512 = true};

const Operand& operand_of(const Schedule& s, OperandId id) { return s.operands[id.index()]; }
const Buffer& buffer_of(const Schedule& s, OperandId id) { return s.buffers[operand_of(s, id).buffer.index()]; }

Schedule scheduled(std::string_view text) {
  const Graph graph = parse_graph(str("stepc.graph 1\n{}", text));
  verify_ops(graph);
  Schedule schedule = schedule_graph(graph, {}).schedule;
  verify(schedule);
  EXPECT_EQ(parse_schedule(to_text(schedule)), schedule);
  return schedule;
}

const Instruction& collective(const Schedule& s, std::string_view op) {
  const auto found = std::ranges::find_if(
      s.instructions, [&](const Instruction& one) { return one.kind == Kind::kCollective && one.op == op; });
  EXPECT_NE(found, s.instructions.end()) << to_text(s);
  return *found;
}

TEST(PartitionedStep, SaysWhoDoesItAndOfWhatItsTensorsAreParts) {
  const Schedule s = scheduled(R"(mesh dp_shard=2,tp=2
input %0: f32[4, 8] = parameter "w" part of <8/dp_shard, 8>
input %1: f32[4, 8] = batch "0" part of <8/dp_shard, 8>
input %2: i64[2] = mesh ""
%3: f32[2, 4, 8] = all_gather(%0) {axes=[0], ranks=2} | forward "layer"
%4: f32[8, 8] = reshape(%3) {shape=[8, 8]} | forward "layer"
%5: f32[4, 8] = matmul(%1, %4) {transpose_a=false, transpose_b=false} | forward "layer"
%6: f32[8, 8] = matmul(%1, %5) {transpose_a=true, transpose_b=false} | backward "layer"
%7: f32[2, 4, 8] = reshape(%6) {shape=[2, 4, 8]} | backward "layer"
%8: f32[4, 8] = reduce_scatter(%7) {axes=[0], ranks=2, reduce="sum"} | backward "layer"
%9: f32[4, 8] = sub(%0, %8) | update "" group 0
update %0 = %9 part of <8/dp_shard, 8>
return %5 part of <8/dp_shard, 8>
)");
  EXPECT_EQ(to_text(s.mesh), "dp_shard=2,tp=2");
  ASSERT_EQ(s.inputs.size(), 3U);
  EXPECT_EQ(s.inputs[0].part->shape, (Shape{8, 8}));
  EXPECT_TRUE(s.inputs[0].part->sharding.splits(0));
  EXPECT_TRUE(s.inputs[0].written);
  EXPECT_EQ(s.inputs[2].kind, InputKind::kMesh);
  EXPECT_EQ(buffer_of(s, s.inputs[2].operand).kind, Memory::kInput);
  EXPECT_EQ(s.input_bytes(), 2 * 128U) << "the rank's place is not the program's memory";
  EXPECT_EQ(s.outputs.at(0).part, s.inputs[1].part);

  const Instruction& gather = collective(s, "all_gather");
  EXPECT_EQ(gather.reads, std::vector<OperandId>{s.inputs[0].operand});
  EXPECT_EQ(gather.attrs, (Attrs{{"axes", Shape{0}}, {"ranks", int64_t{2}}}));
  EXPECT_EQ(gather.source, (Source{Phase::kForward, "layer"}));
  EXPECT_EQ(gather.scratch, Scratch());
  EXPECT_FALSE(gather.why.empty());
  EXPECT_EQ(s.count(Kind::kCopy), 0U) << "views before and after are windows";
  const Instruction& scatter = collective(s, "reduce_scatter");
  EXPECT_EQ(scatter.scratch.bytes, 8 * 8 * 4U / 2) << "what the other rank sent";
  EXPECT_NE(scatter.why.find("f32"), std::string::npos);
}

TEST(PartitionedStep, ScratchHoldsWhatTheOthersSend) {
  for (const auto& [type, reduce, bytes] : {std::tuple{"bf16", "sum", 2U},
                                            {"f16", "sum", 2U},
                                            {"f64", "sum", 8U},
                                            {"i64", "sum", 8U},
                                            {"bool", "max", 1U}}) {
    const Schedule s = scheduled(str(R"(mesh tp=4
input %0: {0}[4, 64] = batch "0"
%1: {0}[64] = reduce_scatter(%0) {{axes=[0], ranks=4, reduce="{1}"}} | forward ""
return %1
)",
                                     type, reduce));
    EXPECT_EQ(collective(s, "reduce_scatter").scratch.bytes, 3 * 64 * bytes) << type;
  }
}

std::string reduced(std::string_view tail) {
  return str(R"(mesh tp=2
input %0: f32[64] = batch "0"
%1: f32[64] = cumsum(%0) {{dim=0}} | forward ""
%2: f32[64] = all_reduce(%1) {{axes=[0], ranks=2, reduce="sum"}} | forward ""
%3: f32[64] = cumsum(%2) {{dim=0}} | forward ""
{})",
             tail);
}

TEST(PartitionedStep, AnAllReduceIsInPlaceWhereItsOperandDies) {
  const Schedule dies = scheduled(reduced("return %3\n"));
  const Instruction& one = collective(dies, "all_reduce");
  EXPECT_EQ(buffer_of(dies, one.reads[0]).offset, buffer_of(dies, one.writes[0]).offset);
  const Schedule lives = scheduled(reduced("%4: f32[64] = cumsum(%1) {dim=0} | forward \"\"\nreturn %3\nreturn %4\n"));
  const Instruction& other = collective(lives, "all_reduce");
  const Instruction& copy = *(&other - 1);  // what is read later stays as it is
  EXPECT_EQ(copy.kind, Kind::kCopy);
  EXPECT_EQ(other.reads, other.writes);
  EXPECT_EQ(copy.writes, other.reads);
  EXPECT_NE(buffer_of(lives, copy.reads[0]).offset, buffer_of(lives, copy.writes[0]).offset);
}

TEST(PartitionedStep, AnAllReduceUpdatesWhatItReads) {
  const Schedule s = scheduled(R"(mesh tp=2
input %0: f32[64] = buffer "0"
%1: f32[64] = all_reduce(%0) {axes=[0], ranks=2, reduce="max"} | update ""
update %0 = %1
)");
  const Instruction& one = collective(s, "all_reduce");
  EXPECT_EQ(operand_of(s, one.writes[0]).buffer, operand_of(s, one.reads[0]).buffer);
  EXPECT_EQ(s.arena_bytes, 128U) << "what the other rank sends of one half";
  EXPECT_EQ(s.instructions.size(), 1U);
}

TEST(PartitionedStep, WhatDoesNotLieInOnePieceIsCopiedFirst) {
  for (const std::string op : {"all_gather", "reduce_scatter", "all_to_all", "all_reduce"}) {
    const std::string shape = op == "all_gather" ? "2, 2, 64" : op == "reduce_scatter" ? "64" : "2, 64";
    const Schedule s = scheduled(str(R"(mesh tp=2
input %0: f32[64, 2] = batch "0"
%1: f32[2, 64] = transpose(%0) {{permutation=[1, 0]}} | backward "x"
%2: f32[{}] = {}(%1) {{axes=[0], ranks=2{}}} | backward "x"
return %2
)",
                                     shape, op, op.find("reduce") == std::string::npos ? "" : R"(, reduce="sum")"));
    ASSERT_EQ(s.instructions.size(), 2U);
    const Instruction &copy = s.instructions[0], &one = s.instructions[1];
    EXPECT_EQ(copy.kind, Kind::kCopy);
    EXPECT_EQ(copy.source, one.source);
    EXPECT_EQ(one.reads, copy.writes);
    EXPECT_EQ(operand_of(s, copy.reads[0]).strides, (Shape{1, 2}));
    // What others send of a half, and the copy, but of an all-reduce, whose copy lies in the result's place.
    const uint64_t received = op.find("reduce") == std::string::npos ? 0 : 256, copied = op == "all_reduce" ? 0 : 512;
    EXPECT_EQ(s.arena_bytes, received + copied);
  }
}

TEST(PartitionedStep, ABucketReducesEachInItsPlace) {
  const Schedule s = scheduled(R"(mesh tp=2
input %0: f32[64] = buffer "0"
input %1: f32[16] = buffer "1"
%2: f32[64], %3: f32[16] = all_reduce(%0, %1) {axes=[0], ranks=2, reduce="max"} | update ""
update %0 = %2
update %1 = %3
)");
  ASSERT_EQ(s.instructions.size(), 1U);
  for (size_t k = 0; k < 2; ++k)
    EXPECT_EQ(operand_of(s, s.instructions[0].writes[k]).buffer, operand_of(s, s.instructions[0].reads[k]).buffer);
  EXPECT_EQ(s.instructions[0].scratch.bytes, 192U) << "half of each, aligned";
}

// Layers of one weight each, with two tensors of optimizer state.
Graph whole_step(size_t layers) {
  GraphBuilder b;
  const TensorType weight{DType::kF32, {256, 256}};
  const auto input = [&](InputKind kind, const std::string& key, const TensorType& type) {
    return b.graph().add_input({kind, key, {}, {}, 0}, type);
  };
  std::vector<TensorId> weights, first, second, activations;
  for (size_t l = 0; l < layers; ++l) {
    weights.push_back(input(InputKind::kParameter, str("{}", l), weight));
    first.push_back(input(InputKind::kOptimizerState, str("{}.exp_avg", l), weight));
    second.push_back(input(InputKind::kOptimizerState, str("{}.exp_avg_sq", l), weight));
  }
  activations.push_back(input(InputKind::kBatch, "0", {DType::kF32, {128, 256}}));
  for (TensorId w : weights) {
    b.set_source({Phase::kForward, ""});
    activations.push_back(b.add("tanh", {b.add("matmul", {activations.back(), w})}));
  }
  TensorId gradient = activations.back();
  std::vector<std::pair<TensorId, TensorId>> updates;  // input, new contents
  for (size_t l = layers; l-- > 0;) {
    b.set_source({Phase::kBackward, ""});
    gradient = b.add("mul", {gradient, b.add("square", {activations[l + 1]})});
    const TensorId of_weight = b.add("matmul", {activations[l], gradient}, {{"transpose_a", true}});
    if (l > 0) gradient = b.add("matmul", {gradient, weights[l]}, {{"transpose_b", true}});
    b.set_source({Phase::kUpdate, ""});
    const TensorId mean = b.add("add", {first[l], of_weight});
    const TensorId square = b.add("add", {second[l], b.add("square", {of_weight})});
    const TensorId step = b.add("mul", {mean, b.add("rsqrt", {b.add("add", {square, b.full(1, DType::kF32)})})});
    updates.emplace_back(first[l], mean);
    updates.emplace_back(second[l], square);
    updates.emplace_back(weights[l], b.add("sub", {weights[l], step}));
  }
  for (const auto& [place, now] : updates)
    b.graph().outputs.push_back(
        {GraphOutput::Kind::kUpdate, now, b.graph().tensors[place.index()].place, {}, {}, {}, {}});
  return b.take();
}

// Zero 3: each rank keeps half of the parameters, their gradients and optimizer state.
TEST(PartitionedStep, ARankOfShardedDataTakesLessThanOneDevice) {
  const auto planned = [](const Strategy& strategy) {
    RunOptions options;
    options.verify = true;
    options.settings.strategy = strategy;
    Schedule s = schedule_graph(run_passes(whole_step(8), options).graph, {}).schedule;
    verify(s);
    return s;
  };
  const Schedule whole = planned({});
  const Schedule part = planned({make_mesh({{"dp_shard", 2}}), 3});
  EXPECT_GT(part.count(Kind::kCollective), 3U);
  EXPECT_LT(part.needed_bytes(), whole.needed_bytes() * 3 / 4);
  std::printf("one device: %s in all, %s planned; one of two ranks: %s, %s\n",
              human_bytes(whole.needed_bytes()).c_str(), human_bytes(whole.peak_bytes()).c_str(),
              human_bytes(part.needed_bytes()).c_str(), human_bytes(part.peak_bytes()).c_str());
  EXPECT_LE(part.input_bytes(), whole.input_bytes() / 2 + 64);
  EXPECT_EQ(part.count(Kind::kCopy), 0U) << "updates are in place";
}

// ---- random steps

TEST(PartitionedStep, RandomOnesAreGoodAndTheSameEveryTime) {
  size_t collectives = 0, in_place = 0, copied = 0, draws_of_parts = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const Strategy strategy = test::random_strategy(seed);
    SCOPED_TRACE(str("seed {}, {}, zero {}", seed, to_text(strategy.mesh), strategy.zero));
    const Features features = seed % 2 == 0 ? Features{} : kEvery;
    const auto step = [&] { return test::random_fused_step(seed, matmul_rule(features), false, strategy); };
    const Graph graph = step();
    const GraphScheduleOptions options{.features = features, .threads = 2};
    const GraphSchedule plan = schedule_graph(graph, options);
    const Schedule& s = plan.schedule;
    verify(s);
    EXPECT_TRUE(plan.one_by_one.empty()) << fmt::format("{}", fmt::join(plan.one_by_one, "; "));
    EXPECT_EQ(parse_schedule(to_text(s)), s);
    EXPECT_EQ(hash_of(schedule_graph(step(), options).schedule), hash_of(s));
    size_t nodes = 0;
    for (const Node& node : graph.nodes) {
      draws_of_parts += has(node, Trait::kRandom) && node.inputs.size() > 1;
      if (!exchanges(collective_of(node))) continue;
      EXPECT_FALSE(node.group.has_value());
      ++nodes;
    }
    EXPECT_EQ(s.count(Kind::kCollective), nodes);
    collectives += nodes;
    for (const Instruction& one : s.instructions) {
      if (one.kind != Kind::kCollective) continue;
      in_place += buffer_of(s, one.reads[0]).kind == Memory::kArena &&
                  buffer_of(s, one.writes[0]).kind == Memory::kArena &&
                  buffer_of(s, one.reads[0]).offset == buffer_of(s, one.writes[0]).offset;
    }
    copied +=
        static_cast<size_t>(std::ranges::count(s.instructions, "the kernel reads it contiguous", &Instruction::why));
    if (HasFailure()) {
      ADD_FAILURE() << to_text(graph);
      return;
    }
  }
  std::printf("%zu collectives, %zu in place, %zu copied before; %zu draws of parts\n", collectives, in_place, copied,
              draws_of_parts);
  EXPECT_GT(collectives, 500U);
  EXPECT_GT(in_place, 20U);
  EXPECT_GT(copied, 10U);
  EXPECT_GT(draws_of_parts, 20U);
}

TEST(PartitionedStep, PlainSchedulesToo) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const Graph graph = test::random_fused_step(seed, {}, false, test::random_strategy(seed));
    verify(schedule_graph(graph, {.threads = 2, .is_plain = true}).schedule);
  }
}

TEST(PartitionedStep, NoCollectiveIsRecomputed) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    RunOptions options;
    options.verify = true;
    options.settings.strategy = test::random_strategy(seed);
    const Graph graph = test::random_step(seed);
    const std::vector<Communication> kept = communication_of(run_passes(graph, options).graph);
    options.settings.recompute.emplace().budget_bytes = 1;
    const Graph recomputed = run_passes(graph, options).graph;
    EXPECT_EQ(communication_of(recomputed), kept) << seed;
    verify(schedule_graph(recomputed, {}).schedule);
  }
}

}  // namespace
}  // namespace stepc
