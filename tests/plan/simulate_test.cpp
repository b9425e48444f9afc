// What a Schedule will take: prices by kind of work, where traffic comes from, memory over time.
#include "plan/simulate.h"

#include <algorithm>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "passes/fusion/fuse.h"
#include "plan/plan_graph.h"

namespace stepc {
namespace {

constexpr Features kEveryFeature{.bf16 = true, .f32 = true, .avx512 = true};

Schedule schedule_of(const std::string& graph, Features features = kEveryFeature) {
  PlanGraphOptions options;
  options.target.features = features;
  options.target.threads = 2;
  return plan_graph(parse_graph("stepc.graph 1\n" + graph), nullptr, options).plan.schedule;
}

// One instruction's time and class.
TimelineEntry only(const Schedule& schedule, const Target& target) {
  const Timeline timeline = simulate(schedule, target);
  const auto is_copy = [](const Instruction& one) { return one.kind == Instruction::Kind::kCopy; };
  const auto kernel = std::ranges::find_if_not(schedule.instructions, is_copy);  // what it reads may be moved first
  EXPECT_EQ(kernel + 1, schedule.instructions.end());
  return timeline.entries.back();
}

std::string matmul(int64_t rows, int64_t inner, int64_t columns) {
  return str(
      "input %0: f32[{0}, {1}] = batch \"0\"\ninput %1: f32[{1}, {2}] = parameter \"w\"\n"
      "%2: f32[{0}, {2}] = matmul(%0, %1) {{transpose_a=false, transpose_b=false}} | forward \"\"\nreturn %2\n",
      rows, inner, columns);
}

TEST(Simulate, AMatmulTakesItsArithmeticAtTheRateOfItsSizeAndKernel) {
  Target target;
  target.rates.instruction_seconds = target.rates.aten_call_seconds = target.rates.fork_seconds = 1e-9;
  target.rates.streams = {{1, 1e18}};
  target.rates.matmuls = {{KernelOwner::kBlocked, DType::kF32, 64, 64, 64, 1e9},
                          {KernelOwner::kBlocked, DType::kF32, 256, 256, 256, 4e9},
                          {KernelOwner::kLibrary, DType::kF32, 64, 64, 64, 5e8}};
  const double flops = 2.0 * 64 * 64 * 64;
  const TimelineEntry blocked = only(schedule_of(matmul(64, 64, 64)), target);
  EXPECT_EQ(blocked.work, WorkClass::kMatmulBlocked);
  EXPECT_NEAR(blocked.seconds(), flops / 1e9, 2e-9);
  const TimelineEntry library = only(schedule_of(matmul(64, 64, 64), {}), target);
  EXPECT_EQ(library.work, WorkClass::kMatmulLibrary);
  EXPECT_NEAR(library.seconds(), flops / 5e8, 2e-9);
  EXPECT_NEAR(only(schedule_of(matmul(256, 256, 256)), target).seconds(), 64 * flops / 4e9, 2e-9);
  // As far from one as from the other: the geometric mean.
  EXPECT_NEAR(only(schedule_of(matmul(128, 128, 128)), target).seconds(), 8 * flops / 2e9,
              1e-6 * 8 * flops / 2e9 + 2e-9);
  // Beyond the table the nearest row holds.
  EXPECT_NEAR(only(schedule_of(matmul(512, 512, 512)), target).seconds(), 512 * flops / 4e9, 2e-9);
}

TEST(Simulate, WhatOperandsTakeOnTheirWayComesOnTop) {
  Target target;
  target.rates.instruction_seconds = target.rates.fork_seconds = 1e-9;
  target.rates.matmuls = {{KernelOwner::kBlocked, DType::kF32, 64, 64, 64, 1e6}};
  target.rates.streams = {{1, 1e5}};
  const double flops = 2.0 * 64 * 64 * 64, bytes = 4.0 * 3 * 64 * 64;
  EXPECT_NEAR(only(schedule_of(matmul(64, 64, 64)), target).seconds(), flops / 1e6 + bytes / 1e5, 1e-6);
}

TEST(Simulate, ManyProductsInACallTakeWhatWasMeasuredOfMany) {
  const Schedule many = schedule_of(
      "input %0: f32[8, 16, 16] = batch \"0\"\ninput %1: f32[8, 16, 16] = batch \"1\"\n"
      "%2: f32[8, 16, 16] = matmul(%0, %1) {transpose_a=false, transpose_b=false} | forward \"\"\nreturn %2\n",
      {});
  Target target;
  target.rates.aten_call_seconds = target.rates.fork_seconds = 1e-12;
  target.rates.streams = {{1, 1e18}};
  target.rates.matmuls = {{KernelOwner::kLibrary, DType::kF32, 16, 16, 16, 1e6}};
  const double flops = 8 * 2.0 * 16 * 16 * 16;
  EXPECT_NEAR(only(many, target).seconds(), flops / 1e6, 1e-9) << "as one of as many rows as threads share";
  target.rates.matmuls.push_back({KernelOwner::kLibrary, DType::kF32, 16, 16, 16, 4e6, 32});
  EXPECT_NEAR(only(many, target).seconds(), flops / 4e6, 1e-9);
  EXPECT_NEAR(only(schedule_of(matmul(16, 16, 16), {}), target).seconds(), flops / 8 / 1e6, 1e-9);
}

std::string attention(int64_t length, bool backward) {
  const std::string four = str("f32[1, 2, {}, 64]", length), sums = str("f32[1, 2, {}]", length);
  std::string graph;
  for (int i = 0; i < (backward ? 5 : 3); ++i) graph += str("input %{}: {} = batch \"{}\"\n", i, four, i);
  if (!backward)
    return graph + str("%3: {}, %4: {} = attention(%0, %1, %2) {{causal=false, scale=0.125}} | forward \"\"\n"
                       "return %3\nreturn %4\n",
                       four, sums);
  return graph +
         str("input %5: {1} = batch \"5\"\n%6: {0}, %7: {0}, %8: {0} = attention_backward(%3, %0, %1, %2, %4, %5) "
             "{{causal=false, scale=0.125}} | backward \"\"\nreturn %6\nreturn %7\nreturn %8\n",
             four, sums);
}

double attention_seconds(int64_t length, bool backward, const Target& target) {
  double sum = 0;
  for (const TimelineEntry& entry : simulate(schedule_of(attention(length, backward)), target).entries)
    if (entry.work == WorkClass::kAttentionBlocked) sum += entry.seconds();
  return sum;
}

TEST(Simulate, AttentionTakesTheBlocksThatItFillsUp) {
  Target target;
  target.rates.instruction_seconds = target.rates.fork_seconds = 1e-12;
  target.rates.streams = {{1, 1e18}};
  target.rates.attentions.clear();
  for (const KernelOwner owner : {KernelOwner::kLibrary, KernelOwner::kBlocked})
    for (const bool backward : {false, true})
      target.rates.attentions.push_back({owner, DType::kF32, backward, 16, 64, 1e9});
  for (const bool backward : {false, true}) {
    const auto seconds = [&](int64_t length) { return attention_seconds(length, backward, target); };
    EXPECT_NEAR(seconds(64), (backward ? 10.0 : 4.0) * 2 * 64 * 64 * 64 / 1e9, 1e-9);
    // Keys are taken by 64, and queries too where gradients of both are made: up to 128 of them by the 64, 48 or 32
    // that leave the least over.
    EXPECT_NEAR(seconds(65) / seconds(64), backward ? 1.5 * 1.5 : 2.0 * 65 / 64, 1e-6);
    EXPECT_NEAR(seconds(100) / seconds(64), backward ? 4.0 : 2.0 * 100 / 64, 1e-6);
    EXPECT_NEAR(seconds(129) / seconds(64), backward ? 9.0 : 3.0 * 129 / 64, 1e-6);
  }
}

// 17 tokens are filled up to 32, and take as long; what one block holds takes as long as was measured.
TEST(Simulate, AttentionsBackwardPassTakesWhatItsTokensAreFilledUpTo) {
  Target target;
  target.rates.instruction_seconds = target.rates.fork_seconds = 1e-12;
  target.rates.streams = {{1, 1e18}};
  target.rates.attentions.clear();
  const auto rate = [&](int64_t length, double flops_per_second) {
    target.rates.attentions.push_back({KernelOwner::kBlocked, DType::kF32, true, length, 64, flops_per_second});
  };
  rate(4, 1e9);
  rate(16, 2e9);
  rate(32, 4e9);
  const auto seconds = [&](int64_t length) { return attention_seconds(length, true, target); };
  EXPECT_NEAR(seconds(17), seconds(32), 1e-12);
  EXPECT_NEAR(seconds(16) / seconds(32), 0.25 * 2, 1e-6);
  EXPECT_NEAR(seconds(4) / seconds(16), 2, 1e-6);
}

TEST(Simulate, ACopyOfShortRowsTakesItsRows) {
  Target target;
  target.rates.aten_call_seconds = target.rates.fork_seconds = 1e-12;
  target.rates.streams = {{1, 1e18}};
  target.rates.aten_rows_per_second = 1e6;
  const auto copied = [&](int64_t width) {
    return only(schedule_of(str("input %0: f32[2, 4, 64, {0}] = batch \"0\"\n"
                                "%1: f32[2, 64, 4, {0}] = transpose(%0) {{permutation=[0, 2, 1, 3]}} | forward \"\"\n"
                                "%2: f32[2, 64, {1}] = reshape(%1) {{shape=[2, 64, {1}]}} | forward \"\"\nreturn %2\n",
                                width, 4 * width)),
                target);
  };
  EXPECT_EQ(copied(32).work, WorkClass::kStrided);
  EXPECT_NEAR(copied(32).seconds(), 2 * 512 / 1e6, 1e-9) << "one of two threads";
  EXPECT_LT(copied(1024).seconds(), 1e-6) << "long rows take their bytes";
}

std::string written(const std::string& instructions) {
  return "stepc.schedule 1\nfeatures none\nthreads 2\narena 0\nlive bound 0\nlayout \"best_fit\"\nnumbers 0\n"
         "buffer b0: input 4096 of 0\nbuffer b1: own 4096\nbuffer b2: input 16 of 1\n"
         "operand %0: f32[1024] in b0\noperand %1: f32[1024] in b1\noperand %2: i64[2] in b2\n"
         "input 0: batch \"0\" %0\ninput 1: rng \"\" %2\n" +
         instructions;
}

TEST(Simulate, ACallTakesWhatWasMeasuredOfIt) {
  const Schedule exp = parse_schedule(written("i0: op exp (%0) -> (%1) | forward \"\"\n"));
  Target target;
  target.rates.streams = {{1, 1e18}};
  target.rates.aten_call_seconds = 5e-6;
  target.rates.aten_flops_per_second = 1e18;
  EXPECT_NEAR(only(exp, target).seconds(), 5e-6, 1e-9) << "as any call";
  // So many bytes a second of both threads, of which a small call has one.
  target.rates.calls = {{"aten::exp", DType::kF32, 3e-6, 1e9}, {"exp", DType::kBF16, 1, 1}};
  EXPECT_NEAR(only(exp, target).seconds(), 3e-6 + 2 * 8192 / 1e9, 1e-9);
  target.rates.calls.push_back({"exp", DType::kF32, 2e-6, 1e18});
  EXPECT_NEAR(only(exp, target).seconds(), 2e-6, 1e-9) << "its own name first";
  const Schedule list = parse_schedule(written(
      "i0: aten aten::_foreach_mul.Scalar (%0, %0, %0) -> (%1, %1, %1) args(t[#0, #1, #2], 2.0) results(t[#0, #1, #2]) "
      "| forward \"\"\n"));
  target.rates.calls.push_back({"aten::_foreach_mul.Scalar", DType::kF32, 1e-6, 1e18});
  EXPECT_NEAR(only(list, target).seconds(), 3e-6, 1e-9) << "one a tensor";
}

TEST(Simulate, WhatTheHostDoesBetweenKernelsHasAPrice) {
  Target target;
  target.rates.instruction_seconds = 1e-6;
  target.rates.host_number_seconds = 1e-5;
  target.rates.seed_seconds = 1e-4;
  target.rates.input_seconds = 1e-3;
  const std::string numbers = "host call 0 arg 0 integer 1\nhost call 1 arg 0 integer 1\nhost call 2 arg 0 integer 1\n";
  const auto seconds = [&](const std::string& instruction) {
    const TimelineEntry entry = only(parse_schedule(written(instruction + numbers)), target);
    EXPECT_EQ(entry.work, WorkClass::kHost);
    EXPECT_NEAR(entry.begin_seconds, 2e-3, 1e-9) << "two inputs are bound before";
    return entry.seconds();
  };
  EXPECT_NEAR(seconds("i0: guard \"\" (%0) -> () | forward \"\"\n"), 1e-6, 1e-9);
  EXPECT_NEAR(seconds("i0: seed \"\" () -> (%2) | forward \"\"\n"), 1e-4, 1e-9);
  EXPECT_NEAR(seconds("i0: event \"step\" () -> () event 0 in place | update \"\"\n"), 1e-6 + 3e-5, 1e-9);
  EXPECT_NEAR(seconds("i0: event \"step\" () -> () event 0 | update \"\"\n"), 1e-6, 1e-9) << "before the run";
}

TEST(Simulate, AnOperatorOfTheProgramsTakesWhatItsRuleSays) {
  const auto own = [](const std::string& rule) {
    return schedule_of("input %0: f32[64, 64] = batch \"0\"\n%1: f32[64, 64] = my::op(%0) -> %" + rule +
                       " | forward \"\"\nreturn %1\n");
  };
  Target target;
  target.rates.aten_call_seconds = 1e-9;
  target.rates.matmuls = {{KernelOwner::kLibrary, DType::kF32, 64, 64, 16, 1e9},
                          {KernelOwner::kLibrary, DType::kF32, 64, 64, 256, 4e9}};
  target.rates.aten_flops_per_second = 5e8;
  target.rates.streams = {{1, 1e9}};
  const double bytes = 2.0 * 64 * 64 * 4;
  // As the product of a (64, 256) and a (256, 64) matrix, which is beyond functions of one element each.
  const double product = 2.0 * 64 * 64 * 256;
  const TimelineEntry busy = only(own(str(" rule flops {:.1f}", product)), target);
  EXPECT_EQ(busy.work, WorkClass::kOwn);
  EXPECT_NEAR(busy.seconds(), product / 4e9 + bytes / 1e9, 1e-8);
  EXPECT_NEAR(only(own(" rule flops 131072.0"), target).seconds(), 2 * 131072 / 5e8 + bytes / 1e9, 1e-8)
      << "one of two threads";
  EXPECT_NEAR(only(own(" rule flops 0.0"), target).seconds(), bytes / 1e9, 1e-8);
  EXPECT_NEAR(only(own(" rule flops 0.0 bytes 3000000.0"), target).seconds(), 3e6 / 1e9, 1e-8);
  EXPECT_EQ(only(own(""), target).work, WorkClass::kElementwise);
}

std::string doubled(int64_t count) {
  return str("input %0: f32[{0}] = parameter \"w\"\n%1: f32[{0}] = add(%0, %0) | forward \"\"\nupdate %0 = %1\n",
             count);
}

TEST(Simulate, WhatWasTouchedLongAgoComesFromFurtherAway) {
  Target target;
  target.rates.lane_ops_per_second = 1e15;
  target.rates.streams = {{1 << 20, 1e11}, {1 << 26, 1e10}};
  const auto seconds_a_byte = [&](int64_t count) {
    return simulate(schedule_of(doubled(count)), target).seconds / (8.0 * static_cast<double>(count));
  };
  // A step that touches 128 KiB finds them in the cache where the step before left them; one of 128 MiB does not.
  EXPECT_NEAR(seconds_a_byte(1 << 14), 1e-11, 1e-11);
  EXPECT_NEAR(seconds_a_byte(1 << 24), 1e-10, 2e-11);
}

TEST(Simulate, AGeneratedKernelTakesItsLoopsAtTheRatesOfWhatTheyDo) {
  Target target;
  target.rates.streams = {{1, 1e18}};
  target.rates.instruction_seconds = target.rates.fork_seconds = 1e-12;
  target.rates.lane_ops_per_second = 1e9;
  target.rates.lane_roots_per_second = 1e8;
  constexpr int64_t kCount = 1 << 20;
  const auto unary = [&](const std::string& op) {
    return only(schedule_of(str("input %0: f32[{0}] = batch \"0\"\n%1: f32[{0}] = {1} | forward \"\"\nreturn %1\n",
                                kCount, op)),
                target)
        .seconds();
  };
  const double negated = unary("neg(%0)"), root = unary("sqrt(%0)"), exponential = unary("exp(%0)");
  EXPECT_NEAR(negated, 3e-9 * kCount, 1e-3 * negated) << "a load, a change of sign, a store";
  EXPECT_NEAR(root, (2e-9 + 1e-8) * kCount, 1e-3 * root);
  EXPECT_GT(exponential, 4 * negated) << "a polynomial";
}

// What has no kernel of its own runs node by node, a chunk of the elements at a time.
TEST(Simulate, NodesThatRunOneByOneTakeTheirCalls) {
  const Graph fused = fuse(parse_graph(
      "stepc.graph 1\ninput %0: f32[196608] = batch \"0\"\ninput %1: f32[196608] = batch \"1\"\n"
      "%2: f32[196608] = add(%0, %1) | forward \"\"\n%3: f32[196608] = mul(%2, %0) | forward \"\"\nreturn %3\n"));
  const Schedule schedule = schedule_graph(fused, {.threads = 2, .is_plain = true}).schedule;
  ASSERT_EQ(schedule.count(Instruction::Kind::kNodes), 1U);
  Target target;
  target.threads = 2;
  target.rates.aten_call_seconds = 1e-3;
  target.rates.fork_seconds = 2e-3;
  target.rates.streams = {{1, 1e18}};
  target.rates.aten_flops_per_second = 1e18;
  const TimelineEntry entry = only(schedule, target);
  EXPECT_EQ(entry.work, WorkClass::kElementwise);
  EXPECT_NEAR(entry.seconds(), 3 * 3 * 3e-3, 1e-9) << "three chunks of two nodes and a copy";
  target.rates.aten_flops_per_second = 1e6;
  EXPECT_NEAR(only(schedule, target).seconds(), 3 * 3 * 3e-3 + 2 * 196608 / 1e6, 1e-6);
  target.rates.streams = {{1, 1e6}};
  EXPECT_NEAR(only(schedule, target).seconds(), 3 * 3 * 3e-3 + (2 + 4.0 * (3 + 3) + 4.0 * 3) * 196608 / 1e6, 1e-6)
      << "each node reads and writes what the other leaves, and all of them what lies further away";
}

TEST(Simulate, LiveBytesAreThoseOfThePlan) {
  const Schedule schedule = schedule_of(
      "input %0: f32[1024] = batch \"0\"\n"
      "%1: f32[1024] = cumsum(%0) {dim=0} | forward \"\"\n"
      "%2: f32[1024] = cumsum(%1) {dim=0} | forward \"\"\n"
      "%3: f32[1024] = cumsum(%2) {dim=0} | forward \"\"\n"
      "return %3\n");
  const Timeline timeline = simulate(schedule, {});
  ASSERT_EQ(timeline.entries.size(), 3U);
  EXPECT_GE(timeline.peak_bytes, 2 * 4096U);
  EXPECT_LE(timeline.peak_bytes, schedule.peak_bytes() + schedule.input_bytes());
  EXPECT_LT(timeline.entries[0].live_bytes, timeline.entries[1].live_bytes);
  EXPECT_EQ(timeline.entries[1].begin_seconds, timeline.entries[0].end_seconds) << "one stream, one after the other";
  EXPECT_EQ(timeline.seconds, timeline.entries[2].end_seconds);
}

TEST(Simulate, TheSameScheduleAndTargetGiveTheSameTimeline) {
  const Schedule schedule = schedule_of(matmul(100, 30, 70));
  EXPECT_EQ(simulate(schedule, {}), simulate(parse_schedule(to_text(schedule)), parse_target(to_text(Target()))));
}

// One collective on 1024 elements of f32 for each of `ranks` ranks along the first axes of a mesh, or both.
Schedule collective(const std::string& op, int64_t given, const std::string& result, const std::string& axes,
                    int64_t ranks) {
  const bool reduces = op.find("reduce") != std::string::npos;
  return schedule_graph(
             parse_graph(str("stepc.graph 1\nmesh dp_shard=4,tp=2\ninput %0: f32[{0}, {1}] = batch \"0\"\n"
                             "%1: f32[{2}] = {3}(%0) {{axes=[{4}], ranks={0}{5}}} | backward \"x\"\nreturn %1\n",
                             ranks, given, result, op, axes, reduces ? ", reduce=\"sum\"" : "")),
             {})
      .schedule;
}

TEST(Simulate, ACollectiveIsARingsHopsAndBytes) {
  Target target;
  target.rates.streams = {{1, 1e18}};
  target.rates.link_latency_seconds = 1e-3;
  target.rates.link_bytes_per_second = 1e6;
  const auto seconds = [&](const Schedule& schedule) {
    const TimelineEntry entry = only(schedule, target);
    EXPECT_EQ(entry.work, WorkClass::kCollective);
    return entry.seconds();
  };
  // Each rank gives 4 x 1024 elements, 16384 bytes; of 4 ranks each sends 3 times, a quarter each time.
  EXPECT_NEAR(seconds(collective("reduce_scatter", 1024, "1024", "0", 4)), 3e-3 + 3 * 4096e-6, 1e-12);
  EXPECT_NEAR(seconds(collective("all_to_all", 1024, "4, 1024", "0", 4)), 3e-3 + 3 * 4096e-6, 1e-12);
  EXPECT_NEAR(seconds(collective("all_reduce", 1024, "4, 1024", "0", 4)), 6e-3 + 6 * 4096e-6, 1e-12);
  // All 16384 bytes go to each of the others.
  EXPECT_NEAR(seconds(collective("all_gather", 1024, "4, 4, 1024", "0", 4)), 3e-3 + 3 * 16384e-6, 1e-12);
  EXPECT_NEAR(seconds(collective("all_reduce", 1024, "2, 1024", "1", 2)), 2e-3 + 2 * 4096e-6, 1e-12);
  EXPECT_NEAR(seconds(collective("reduce_scatter", 1024, "1024", "0, 1", 8)), 7e-3 + 7 * 4096e-6, 1e-12);
  // A link that is faster than memory waits for that.
  target.rates.link_bytes_per_second = 1e18;
  target.rates.streams = {{1, 1e6}};
  EXPECT_NEAR(seconds(collective("all_to_all", 1024, "4, 1024", "0", 4)), 3e-3 + 2 * 16384e-6, 1e-9);
}

// A gather of 16384 bytes in 2 ms beside kernels of 1 ms and of 3 ms.
TEST(Simulate, AnExchangeGoesOnBesideOtherStreams) {
  const Schedule schedule = parse_schedule(R"(stepc.schedule 1
features none
threads 1
mesh dp_shard=2
arena 66048
live bound 0
layout "best_fit"
numbers 0
buffer b0: input 16384 of 0
buffer b1: arena 32768 at 0
buffer b2: arena 16384 at 32768
buffer b3: own 16384
operand %0: f32[4096] in b0
operand %1: f32[2, 4096] in b1
operand %2: f32[4096] in b2
operand %3: f32[4096] in b1
operand %4: f32[4096] in b3
input 0: parameter "w" %0
i0: copy copy (%0) -> (%2) | forward ""
i1: collective all_gather (%0) -> (%1) {axes=[0], ranks=2} stream 1 mark 0 | forward ""
i2: copy copy (%2) -> (%4) | forward ""
i3: wait wait (%1, %0) -> (%1) mark 0 | forward ""
i4: copy copy (%3) -> (%4) | forward ""
output return %4
)");
  Target target;
  target.rates.streams = {{1, 1e18}};
  target.rates.instruction_seconds = target.rates.input_seconds = 0;
  target.rates.link_latency_seconds = 0;
  target.rates.link_bytes_per_second = 16384 / 2e-3;
  target.rates.aten_call_seconds = 1e-3;
  const auto ends_of = [&] {
    std::vector<double> ends;
    for (const TimelineEntry& entry : simulate(schedule, target).entries) ends.push_back(entry.end_seconds);
    return ends;
  };
  const auto near = [](const std::vector<double>& have, const std::vector<double>& want) {
    ASSERT_EQ(have.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(have[i], want[i], 1e-5) << i;
  };
  near(ends_of(), {1e-3, 3e-3, 2e-3, 3e-3, 4e-3});
  const Timeline timeline = simulate(schedule, target);
  EXPECT_NEAR(timeline.exchange_seconds, 2e-3, 1e-5);
  EXPECT_NEAR(timeline.exposed_seconds, 1e-3, 1e-5) << "the other half goes on beside a kernel";
  target.rates.aten_call_seconds = 3e-3;
  near(ends_of(), {3e-3, 5e-3, 6e-3, 6e-3, 9e-3});
  EXPECT_NEAR(simulate(schedule, target).exposed_seconds, 0, 1e-5);
}

TEST(Simulate, StreamsGoOnBesideEachOtherBetweenRecordsAndWaits) {
  const Schedule schedule = parse_schedule(R"(stepc.schedule 1
features none
threads 1
arena 12288
live bound 0
layout "best_fit"
numbers 0
buffer b0: input 4096 of 0
buffer b1: arena 4096 at 0
buffer b2: arena 4096 at 4096
buffer b3: arena 4096 at 8192
buffer b4: own 4096
operand %0: f32[1024] in b0
operand %1: f32[1024] in b1
operand %2: f32[1024] in b2
operand %3: f32[1024] in b3
operand %4: f32[1024] in b4
input 0: parameter "w" %0
i0: copy copy (%0) -> (%1) | forward ""
i1: record record () -> () mark 0 | forward ""
i2: wait wait () -> () stream 1 mark 0 | forward ""
i3: copy copy (%1) -> (%2) stream 1 | forward ""
i4: record record () -> () stream 1 mark 1 | forward ""
i5: copy copy (%0) -> (%3) | forward ""
i6: wait wait () -> () mark 1 | forward ""
i7: copy copy (%2) -> (%4) | forward ""
output return %4
)");
  verify(schedule);
  Target target;
  target.rates.streams = {{1, 1e18}};
  target.rates.instruction_seconds = target.rates.input_seconds = 0;
  target.rates.aten_call_seconds = 1e-3;
  const Timeline timeline = simulate(schedule, target);
  EXPECT_NEAR(timeline.entries[3].begin_seconds, 1e-3, 1e-5);
  EXPECT_NEAR(timeline.entries[5].begin_seconds, 1e-3, 1e-5) << "beside it";
  EXPECT_NEAR(timeline.entries[7].begin_seconds, 2e-3, 1e-5);
  EXPECT_NEAR(timeline.seconds, 3e-3, 1e-5);
  EXPECT_EQ(timeline.exposed_seconds, 0) << "no exchange";
  EXPECT_EQ(timeline.entries[5].live_bytes, 3U * 4096) << "what stream 1 reads lives until the wait";
  EXPECT_EQ(timeline.entries[7].live_bytes, 2U * 4096);
}

TEST(Simulate, ExchangesBesideEachOtherShareTheLink) {
  const Schedule schedule = parse_schedule(R"(stepc.schedule 1
features none
threads 1
mesh dp_shard=2,tp=2
arena 66048
live bound 0
layout "best_fit"
numbers 0
buffer b0: input 16384 of 0
buffer b1: arena 32768 at 0
buffer b2: arena 32768 at 32768
operand %0: f32[4096] in b0
operand %1: f32[2, 4096] in b1
operand %2: f32[2, 4096] in b2
input 0: parameter "w" %0
i0: collective all_gather (%0) -> (%1) {axes=[0], ranks=2} stream 1 mark 0 | forward ""
i1: collective all_gather (%0) -> (%2) {axes=[1], ranks=2} | forward ""
i2: wait wait (%1, %0) -> (%1) mark 0 | forward ""
output return %1
)");
  Target target;
  target.rates.streams = {{1, 1e18}};
  target.rates.instruction_seconds = target.rates.input_seconds = 0;
  target.rates.link_latency_seconds = 0;
  target.rates.link_bytes_per_second = 16384 / 2e-3;
  const auto end_of_second = [&] { return simulate(schedule, target).entries[1].end_seconds; };
  EXPECT_NEAR(end_of_second(), 4e-3, 1e-5);
  EXPECT_NEAR(simulate(schedule, target).exchange_seconds, 8e-3, 1e-5);
  // A node of two has a link of its own: tp's exchange stays there, dp_shard's goes between nodes.
  target.rates.links = {{"within", 2, 16384 / 1e-3, 0}, {"between", 0, 16384 / 2e-3, 0}};
  EXPECT_NEAR(end_of_second(), 1e-3, 1e-5);
}

TEST(Simulate, SaysWhatRanksSendByKindAndAxes) {
  Schedule schedule = collective("all_to_all", 1024, "4, 1024", "0", 4);
  schedule.instructions.push_back(schedule.instructions[0]);
  schedule.instructions.push_back(collective("all_gather", 512, "8, 8, 512", "0, 1", 8).instructions[0]);
  Target target;
  target.rates.streams = {{1, 1e18}};
  const Timeline timeline = simulate(schedule, target);
  const std::vector<Communication> sent = communication_of(schedule, timeline);
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_EQ(sent[1].op, "all_to_all");
  EXPECT_EQ(sent[1].axes, std::vector<Axis>{0});
  EXPECT_EQ(sent[1].count, 2U);
  EXPECT_EQ(sent[1].hops, 6);
  EXPECT_EQ(sent[1].bytes, 2 * 3.0 / 4 * 16384);
  EXPECT_EQ(sent[1].seconds, timeline.entries[0].seconds() + timeline.entries[1].seconds());
  EXPECT_EQ(sent[0].seconds, timeline.entries[2].seconds());
  const std::string table = to_text(sent, schedule.mesh, "one rank sends");
  EXPECT_NE(table.find("dp_shard+tp"), std::string::npos) << table;
  EXPECT_NE(table.find("24.0 KiB"), std::string::npos) << table;
  EXPECT_NE(table.find("ms"), std::string::npos) << table;
  EXPECT_NE(to_text(timeline).find("collective"), std::string::npos);
  const auto trace = nlohmann::json::parse(to_trace_events(schedule, timeline));
  bool found = false;
  for (const auto& event : trace.at("traceEvents"))
    if (event.at("ph") == "X" && event.at("name") == "all_to_all") {
      EXPECT_EQ(event.at("cat"), "collective");
      EXPECT_EQ(event.at("args").at("axes"), "dp_shard");
      EXPECT_EQ(event.at("args").at("sent_bytes"), 12288);
      found = true;
    }
  EXPECT_TRUE(found);
}

TEST(Simulate, PrintsATableByClassAndATrace) {
  const Schedule schedule = schedule_of(matmul(64, 64, 64));
  const Timeline timeline = simulate(schedule, {});
  EXPECT_NE(to_text(timeline).find("in 1 instructions"), std::string::npos) << to_text(timeline);
  EXPECT_NE(to_text(timeline).find("matmul (blocked)"), std::string::npos);
  const auto trace = nlohmann::json::parse(to_trace_events(schedule, timeline));
  size_t spans = 0, counters = 0;
  for (const auto& event : trace.at("traceEvents")) {
    spans += event.at("ph") == "X" ? 1 : 0;
    counters += event.at("ph") == "C" ? 1 : 0;
  }
  EXPECT_EQ(spans, 1U);
  EXPECT_EQ(counters, 1U);
  EXPECT_DOUBLE_EQ(trace.at("otherData").at("predicted_us").get<double>(), timeline.seconds * 1e6);
}

TEST(Simulate, AnEmptyScheduleTakesNothing) {
  const Timeline timeline = simulate(Schedule(), {});
  EXPECT_EQ(timeline.seconds, 0);
  EXPECT_EQ(timeline.peak_bytes, 0U);
}

}  // namespace
}  // namespace stepc
