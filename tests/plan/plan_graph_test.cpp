// Plans within a budget, and what is tried where a plan takes more than it may.
#include "plan/plan_graph.h"

#include <algorithm>
#include <array>

#include <gtest/gtest.h>

#include "base/text.h"
#include "ops/graph_builder.h"
#include "ops/op_def.h"
#include "plan/simulate.h"
#include "schedule/buffer_lives.h"
#include "tests/expect_user_error.h"
#include "tests/plan/layered_step.h"

namespace stepc {
namespace {

constexpr Features kBlocked{.bf16 = true, .f32 = true, .avx512 = true};

Graph step_of(int layers) { return layered_step(layers, 512, 64, "f32"); }

PlannedGraph planned(const Graph& graph, const MemoryBudget& budget, Target target = {}) {
  PlanGraphOptions options;
  options.target = std::move(target);
  options.target.features = kBlocked;
  options.target.threads = 2;
  options.budget = budget;
  PlannedGraph planned = plan_graph(graph, nullptr, options);
  verify(planned.plan.schedule);
  return planned;
}

TEST(PlanGraph, ABudgetThatIsMetBoundsThePlan) {
  const Graph graph = step_of(8);
  const Schedule whole = planned(graph, {}).plan.schedule;
  for (const uint64_t tenths : {9U, 8U, 7U}) {
    const uint64_t bytes = whole.needed_bytes() * tenths / 10;
    const PlannedGraph within = planned(graph, {MemoryBudget::Kind::kBytes, bytes});
    EXPECT_LE(within.plan.schedule.needed_bytes(), bytes) << tenths;
    EXPECT_GT(within.graph.nodes.size(), planned(graph, {}).graph.nodes.size()) << "activations are recomputed";
  }
}

// Layers whose activations are all elementwise on a product: to make them again takes traffic alone.
Graph elementwise_step() {
  constexpr int kLayers = 8;
  std::string text = "stepc.graph 1\n", updates;
  for (int l = 0; l < kLayers; ++l) text += str("input %{}: f32[256, 256] = parameter \"w{}\"\n", l, l);
  int next = kLayers;
  text += str("input %{}: f32[512, 256] = batch \"0\"\n", next++);
  const auto add = [&](std::string_view phase, std::string_view what, std::string_view shape = "512, 256") {
    text += str("%{}: f32[{}] = {} | {} \"\"\n", next, shape, what, phase);
    return next++;
  };
  const auto product = [&](std::string_view phase, int a, int b, bool first, bool second) {
    return add(phase, str("matmul(%{}, %{}) {{transpose_a={}, transpose_b={}}}", a, b, first, second),
               first ? "256, 256" : "512, 256");
  };
  std::vector<std::array<int, 4>> layers;  // what each is given, the product, and what is made of it
  int x = kLayers;
  for (int l = 0; l < kLayers; ++l) {
    const int m = product("forward", x, l, false, false);
    const int a = add("forward", str("tanh(%{})", m)), b = add("forward", str("exp(%{})", m));
    layers.push_back({x, m, a, b});
    x = add("forward", str("mul(%{}, %{})", a, b));
  }
  int gradient = x;
  for (int l = kLayers; l-- > 0;) {
    const auto& [given, m, a, b] = layers[static_cast<size_t>(l)];
    const int sum = add("backward", str("add(%{}, %{})", add("backward", str("mul(%{}, %{})", gradient, a)),
                                        add("backward", str("mul(%{}, %{})", gradient, b))));
    const int of_product = add("backward", str("mul(%{}, %{})", sum, m));
    const int of_weight = product("backward", given, of_product, true, false);
    gradient = product("backward", of_product, l, false, true);
    updates += str("update %{} = %{}\n", l, add("update", str("sub(%{}, %{})", l, of_weight), "256, 256"));
  }
  Graph graph = parse_graph(text + updates);
  verify_ops(graph);
  return graph;
}

TEST(PlanGraph, AutoWeighsWithTheTargetAndSaysWhatItExpects) {
  const Graph graph = elementwise_step();
  const MemoryBudget automatic{MemoryBudget::Kind::kAuto, 0};
  const PlannedGraph whole = planned(graph, {});
  EXPECT_FALSE(whole.weighed.has_value());
  Target slow_memory, slow_arithmetic;
  slow_memory.flops_per_second = slow_arithmetic.bytes_per_second = 1e18;
  slow_memory.bytes_per_second = slow_arithmetic.flops_per_second = 1e6;
  const MemoryBudget bytes{MemoryBudget::Kind::kBytes, whole.plan.schedule.needed_bytes() * 8 / 10};
  for (const MemoryBudget& budget : {MemoryBudget(), bytes})
    EXPECT_EQ(to_text(planned(graph, budget, slow_memory).plan.schedule),
              to_text(planned(graph, budget, slow_arithmetic).plan.schedule))
        << "nobody asked";
  const PlannedGraph some = planned(graph, automatic, slow_memory);
  const PlannedGraph all = planned(graph, automatic, slow_arithmetic);
  EXPECT_GT(all.graph.nodes.size(), some.graph.nodes.size()) << "what costs 8 % of the time is another number of them";
  for (const PlannedGraph* one : {&some, &all}) {
    ASSERT_TRUE(one->weighed.has_value());
    EXPECT_EQ(one->weighed->chosen.peak_bytes, one->plan.schedule.peak_bytes());
    EXPECT_EQ(one->weighed->without.peak_bytes, whole.plan.schedule.peak_bytes());
    Target target = one == &some ? slow_memory : slow_arithmetic;
    EXPECT_EQ(one->weighed->chosen.seconds, simulate(one->plan.schedule, target).seconds);
    EXPECT_EQ(one->weighed->without.seconds, simulate(whole.plan.schedule, target).seconds);
  }
  EXPECT_LT(all.weighed->chosen.peak_bytes, some.weighed->chosen.peak_bytes);
  EXPECT_LE(some.weighed->chosen.peak_bytes, some.weighed->without.peak_bytes);
}

TEST(PlanGraph, OfABudgetOutOfReachTheSmallestPlanIsReturned) {
  const Graph graph = step_of(8);
  const uint64_t kept = planned(graph, {}).plan.schedule.peak_bytes();
  const PlannedGraph least = planned(graph, {MemoryBudget::Kind::kBytes, 1});
  EXPECT_LT(least.plan.schedule.peak_bytes(), kept);
  EXPECT_GT(least.plan.schedule.needed_bytes(), 1U);
}

// A linear layer of many classes and its cross-entropy, with the gradients of both operands.
Graph loss_of(int tokens) {
  Graph graph = parse_graph(
      str("stepc.graph 1\n"
          "input %0: f32[{0}, 64] = batch \"hidden\"\n"
          "input %1: f32[4096, 64] = parameter \"head\"\n"
          "input %2: i64[{0}] = batch \"labels\"\n"
          "input %3: f32[{0}] = batch \"scale\"\n"
          "%4: f32[{0}, 4096] = matmul(%0, %1) {{transpose_a=false, transpose_b=true}} | forward \"head\"\n"
          "%5: f32[{0}, 4096] = log_softmax(%4) {{dim=1}} | forward \"\"\n"
          "%6: f32[{0}], %7: bool[{0}] = nll_loss(%5, %2) {{ignore_index=-100}} | forward \"\"\n"
          "%8: f32[{0}, 4096] = nll_loss_backward(%3, %2) {{classes=4096, ignore_index=-100}} | backward \"\"\n"
          "%9: f32[{0}, 4096] = log_softmax_backward(%8, %5) {{dim=1}} | backward \"\"\n"
          "%10: f32[4096, 64] = matmul(%9, %0) {{transpose_a=true, transpose_b=false}} | backward \"head\"\n"
          "%11: f32[{0}, 64] = matmul(%9, %1) {{transpose_a=false, transpose_b=false}} | backward \"head\"\n"
          "return %6\nreturn %10\nreturn %11\n",
          tokens));
  verify_ops(graph);
  return graph;
}

TEST(PlanGraph, OfFewTokensTheLogitsAreLessThanTheScratchOfAFusedLoss) {
  for (const int tokens : {8, 4096}) {
    const Graph graph = loss_of(tokens);
    const Schedule free = planned(graph, {}).plan.schedule;
    EXPECT_EQ(free.count(Instruction::Kind::kLoss), 1U);
    const Schedule within = planned(graph, {MemoryBudget::Kind::kBytes, free.needed_bytes() - 1}).plan.schedule;
    EXPECT_EQ(within.count(Instruction::Kind::kLoss), tokens == 8 ? 0U : 1U);
    EXPECT_EQ(within.needed_bytes() < free.needed_bytes(), tokens == 8);
  }
}

// ---- a rank's

PlannedGraph planned_for(const Graph& graph, const Strategy& strategy, const MemoryBudget& budget = {},
                         const Trace* trace = nullptr) {
  PlanGraphOptions options;
  options.target.threads = 2;
  options.target.features = kBlocked;
  options.budget = budget;
  options.passes.verify = true;
  options.passes.settings.strategy = strategy;
  PlannedGraph planned = plan_graph(graph, trace, options);
  verify(planned.plan.schedule);
  return planned;
}

TEST(PlanGraph, AStrategyReachesThePassesAndTheSchedule) {
  const Graph graph = step_of(6);
  const Strategy strategy = {make_mesh({{"dp_shard", 2}}), 3};
  const Schedule whole = planned_for(graph, {}).plan.schedule;
  const PlannedGraph part = planned_for(graph, strategy);
  const Schedule& s = part.plan.schedule;
  EXPECT_TRUE(whole.mesh.axes.empty());
  EXPECT_EQ(s.mesh, strategy.mesh);
  EXPECT_GT(s.count(Instruction::Kind::kCollective), 0U);
  EXPECT_EQ(communication_of(s, simulate(s, {})).size(), communication_of(part.graph).size());
  double of_schedule = 0, of_graph = 0;
  for (const Communication& one : communication_of(s, simulate(s, {}))) of_schedule += one.bytes;
  for (const Communication& one : communication_of(part.graph)) of_graph += one.bytes;
  EXPECT_EQ(of_schedule, of_graph);
  EXPECT_LT(s.needed_bytes(), whole.needed_bytes());
  const Timeline timeline = simulate(s, {});
  EXPECT_LE(timeline.peak_bytes, s.peak_bytes());
  EXPECT_LE(s.live_lower_bound_bytes, s.arena_bytes);
  EXPECT_EQ(hash_of(planned_for(graph, strategy).plan.schedule), hash_of(s));
}

TEST(PlanGraph, ARanksBudgetCountsWhatTheRankHolds) {
  const Graph graph = step_of(8);
  const Strategy strategy = {make_mesh({{"dp_shard", 2}}), 3};
  const Schedule whole = planned_for(graph, strategy).plan.schedule;
  const uint64_t bytes = whole.needed_bytes() * 9 / 10;
  const PlannedGraph within = planned_for(graph, strategy, {MemoryBudget::Kind::kBytes, bytes});
  EXPECT_LE(within.plan.schedule.needed_bytes(), bytes);
  EXPECT_EQ(within.plan.schedule.count(Instruction::Kind::kCollective), whole.count(Instruction::Kind::kCollective));
}

// What zero 3 gathers in both passes is gathered once where the budget has room for it.
TEST(PlanGraph, ABudgetWithRoomKeepsWhatIsGathered) {
  const Graph graph = step_of(8);
  const auto gathers = [](const PlannedGraph& planned) {
    return std::ranges::count(planned.graph.nodes, "all_gather", &Node::op);
  };
  const Strategy strategy = {parse_mesh("dp_shard=2"), 3};
  const PlannedGraph again = planned_for(graph, strategy);
  EXPECT_EQ(gathers(again), 2 * 8 - 1) << "nothing asks for the gradient of the batch";
  const PlannedGraph kept = planned_for(graph, strategy, {MemoryBudget::Kind::kBytes, 1U << 30});
  EXPECT_EQ(gathers(kept), 8);
  const uint64_t bytes = kept.plan.schedule.needed_bytes();
  EXPECT_GT(bytes, again.plan.schedule.needed_bytes());
  EXPECT_EQ(gathers(planned_for(graph, strategy, {MemoryBudget::Kind::kBytes, bytes})), 8);
  const PlannedGraph less = planned_for(graph, strategy, {MemoryBudget::Kind::kBytes, bytes - 1});
  EXPECT_EQ(gathers(less), gathers(again));
  EXPECT_LT(less.plan.schedule.needed_bytes(), bytes);
}

TEST(PlanGraph, EagersMemoryOnOneDeviceDoesNotBoundARanks) {
  const Graph graph = step_of(4);
  const Trace nothing;  // eager took no memory at all
  const Strategy strategy = {make_mesh({{"tp", 2}}), 3};
  const PlannedGraph with = planned_for(graph, strategy, {}, &nothing);
  EXPECT_EQ(to_text(with.plan.schedule), to_text(planned_for(graph, strategy).plan.schedule));
}

TEST(PlanGraph, TheSameStepGivesTheSameSchedule) {
  const Graph graph = step_of(3);
  const MemoryBudget budget = {MemoryBudget::Kind::kBytes, planned(graph, {}).plan.schedule.needed_bytes() - 1};
  EXPECT_EQ(hash_of(planned(graph, budget).plan.schedule), hash_of(planned(graph, budget).plan.schedule));
}

TEST(PlanGraph, EveryPassThatRanIsTold) { EXPECT_EQ(planned(step_of(1), {}).passes.size(), pass_table().size()); }

TEST(MemoryBudget, IsAWordOrASize) {
  EXPECT_EQ(parse_memory_budget("none").kind, MemoryBudget::Kind::kNone);
  EXPECT_EQ(parse_memory_budget("auto").kind, MemoryBudget::Kind::kAuto);
  EXPECT_EQ(parse_memory_budget("12GiB").bytes, uint64_t{12} << 30);
  EXPECT_USER_ERROR(parse_memory_budget("12"),
                    "memory budget is \"12\"; it is \"none\", \"auto\" or a size such as \"12GiB\"");
}

// Causal attention over what rows of `tokens` look up, each key head serving `group` query heads, and its gradients.
Graph attention_step(int64_t tokens, int64_t key_heads, int64_t group) {
  constexpr int64_t kWidth = 64;
  GraphBuilder b;
  b.set_source({Phase::kForward, "attention"});
  const TensorId ids = b.graph().add_input({InputKind::kBatch, "0", {}, {}, 0}, {DType::kI64, {1, tokens}});
  const auto looked_up = [&](const std::string& key, int64_t heads) {
    const TensorId table =
        b.graph().add_input({InputKind::kParameter, key, {}, {}, 0}, {DType::kF32, {32, heads * kWidth}});
    const TensorId rows = b.add("take", {table, ids}, {{"dim", int64_t{0}}});
    return b.transpose(b.reshape(rows, {1, tokens, heads, kWidth}), {0, 2, 1, 3});
  };
  const TensorId q = looked_up("q", key_heads * group), k = looked_up("k", key_heads), v = looked_up("v", key_heads);
  const Attrs attrs = {{"scale", 0.125}, {"causal", true}};
  const std::vector<TensorId> results = b.add_all("attention", {q, k, v}, attrs);
  b.set_source({Phase::kBackward, "attention"});
  const TensorId gradient = looked_up("gradient", key_heads * group);
  std::vector<TensorId> left = b.add_all("attention_backward", {gradient, q, k, v, results[0], results[1]}, attrs);
  left.push_back(results[0]);
  for (TensorId one : left) {
    b.graph().outputs.emplace_back();
    b.graph().outputs.back().tensor = b.sum(one, {0, 1, 2, 3});
  }
  return b.take();
}

PlannedGraph planned_on_ranks(const Graph& graph, Context context, const Target& rates = {}) {
  PlanGraphOptions options;
  options.target = rates;
  options.target.features = kBlocked;
  options.passes.settings.strategy.mesh = parse_mesh("cp=4");
  options.passes.settings.strategy.context = context;
  PlannedGraph planned = plan_graph(graph, nullptr, options);
  verify(planned.plan.schedule);
  return planned;
}

TEST(PlanGraph, TheCheaperWayOfASplitSequenceIsChosen) {
  const auto chosen = [](int64_t tokens, int64_t key_heads, int64_t group, const Target& rates = {}) {
    return planned_on_ranks(attention_step(tokens, key_heads, group), Context::kByPrice, rates).context;
  };
  Target slow_links;
  slow_links.rates.link_bytes_per_second = 1e5;
  EXPECT_EQ(chosen(256, 4, 1, slow_links), Context::kHeads) << "a quarter of each tensor is sent, not each key thrice";
  EXPECT_EQ(chosen(256, 4, 8, slow_links), Context::kRing) << "there are fewer keys than queries to send";
  EXPECT_EQ(chosen(256, 2, 1), Context::kRing) << "4 ranks cannot share 2 heads";
  EXPECT_EQ(chosen(252, 4, 1), Context::kHeads) << "252 tokens are not 8 chunks";
  EXPECT_EQ(chosen(252, 2, 1), Context::kGather);
  for (const Context context : {Context::kGather, Context::kHeads, Context::kRing})
    EXPECT_EQ(planned_on_ranks(attention_step(256, 4, 1), context).context, context);
}

// A rank's own keys and values, which the backward pass reads too, and those of one other rank.
TEST(PlanGraph, ARingHoldsTheKeysOfTwoRanks) {
  const Schedule schedule = planned_on_ranks(attention_step(256, 2, 1), Context::kRing).plan.schedule;
  const std::vector<BufferLife> lives = lives_of(schedule, false);
  std::vector<size_t> here(schedule.instructions.size());
  size_t most = 0;
  for (size_t i = 0; i < schedule.instructions.size(); ++i) {
    const Instruction& one = schedule.instructions[i];
    if (one.op != "rotate" || one.source.phase != Phase::kForward) continue;
    const size_t last = lives[schedule.operands[one.writes[0].index()].buffer.index()].last_use;
    for (size_t at = i; at <= last; ++at) most = std::max(most, ++here[at]);
  }
  EXPECT_EQ(most, 2U) << "keys and values";
}

// Layers whose parameters are gathered for each pass, on links at which all gathers and reductions take a good part of
// what the matmuls take.
TEST(PlanGraph, ExchangesGoOnBesideTheComputation) {
  const Graph graph = step_of(8);
  const auto planned_with = [&](std::optional<uint64_t> overlap_bytes, int zero, const MemoryBudget& budget = {}) {
    PlanGraphOptions options;
    options.target.features = kBlocked;
    options.target.rates.link_bytes_per_second = 1e9;
    options.target.rates.link_latency_seconds = 1e-6;
    options.budget = budget;
    options.passes.settings.strategy = {make_mesh({{"dp_shard", 2}}), zero};
    options.passes.settings.strategy.bucket_bytes = 0;
    options.passes.settings.strategy.overlap_bytes = overlap_bytes;
    PlannedGraph planned = plan_graph(graph, nullptr, options);
    verify(planned.plan.schedule);
    const Timeline timeline = simulate(planned.plan.schedule, options.target);
    return std::pair(std::move(planned), timeline);
  };
  for (const int zero : {1, 3}) {
    const auto [blocking, alone] = planned_with({}, zero);
    const auto [overlapped, beside] = planned_with(0, zero);
    EXPECT_NEAR(alone.exposed_seconds, alone.exchange_seconds, 1e-12) << "each blocks";
    EXPECT_LT(beside.exposed_seconds, 0.7 * alone.exposed_seconds) << "zero " << zero;
    EXPECT_LT(beside.seconds, alone.seconds);
    const uint64_t peak = blocking.plan.schedule.peak_bytes();
    EXPECT_LE(overlapped.plan.schedule.peak_bytes(), peak + peak / 8);
    const auto bytes_of = [](const PlannedGraph& one) {
      double bytes = 0;
      for (const Communication& sent : communication_of(one.graph)) bytes += sent.bytes;
      return bytes;
    };
    EXPECT_EQ(bytes_of(overlapped), bytes_of(blocking)) << "a reduction sends as much in two parts";
    const MemoryBudget tight = {MemoryBudget::Kind::kBytes, blocking.plan.schedule.needed_bytes()};
    EXPECT_LE(planned_with(0, zero, tight).first.plan.schedule.needed_bytes(), tight.bytes);
  }
}

// Recomputation fills a budget, and what is in flight finds no room in it: it leaves some, for less time in all.
TEST(PlanGraph, RecomputationLeavesRoomForExchangesInFlight) {
  const Graph graph = layered_step(8, 256, 64, "f32");
  PlanGraphOptions options;
  options.target.features = kBlocked;
  options.target.rates.link_bytes_per_second = 1e9;
  options.target.rates.link_latency_seconds = 1e-6;
  options.passes.settings.strategy = {make_mesh({{"dp_shard", 2}}), 3};
  options.passes.settings.strategy.bucket_bytes = 0;
  const Schedule roomy = plan_graph(graph, nullptr, options).plan.schedule;
  options.budget = {MemoryBudget::Kind::kBytes, roomy.needed_bytes() - roomy.peak_bytes() * 15 / 100};
  const Schedule blocking = plan_graph(graph, nullptr, options).plan.schedule;
  options.passes.settings.strategy.overlap_bytes = 0;
  const Schedule beside = plan_graph(graph, nullptr, options).plan.schedule;
  EXPECT_LE(blocking.needed_bytes(), options.budget.bytes);
  EXPECT_LE(beside.needed_bytes(), options.budget.bytes);
  const Timeline waits = simulate(blocking, options.target), hides = simulate(beside, options.target);
  EXPECT_LT(hides.exposed_seconds, 0.5 * waits.exposed_seconds);
  EXPECT_LT(hides.seconds, waits.seconds);
}

// What each layer's sum over tp gives is kept for the backward pass, until nothing else meets a budget: then the sum is
// made twice.
TEST(PlanGraph, ExchangesAreMadeTwiceWhereNothingElseFits) {
  const Graph graph = layered_step(12, 1024, 64, "f32");
  PlanGraphOptions options;
  options.target.features = kBlocked;
  options.passes.settings.strategy = {make_mesh({{"tp", 2}}), 0};
  const auto sent = [](const PlannedGraph& planned) {
    double bytes = 0;
    for (const Communication& one : communication_of(planned.graph)) bytes += one.bytes;
    return bytes;
  };
  const PlannedGraph roomy = plan_graph(graph, nullptr, options);
  const uint64_t peak = roomy.plan.schedule.peak_bytes(), needed = roomy.plan.schedule.needed_bytes();
  options.budget = {MemoryBudget::Kind::kBytes, needed - peak / 10};
  const PlannedGraph less = plan_graph(graph, nullptr, options);
  EXPECT_LE(less.plan.schedule.needed_bytes(), options.budget.bytes);
  options.budget.bytes = needed - peak / 2;
  const PlannedGraph least = plan_graph(graph, nullptr, options);
  verify(least.plan.schedule);
  EXPECT_LT(least.plan.schedule.peak_bytes(), less.plan.schedule.peak_bytes());
  EXPECT_EQ(sent(less), sent(roomy));
  EXPECT_GT(sent(least), sent(roomy));
}

// Layers split over tp, whose sums each matmul waits for: in parts, one goes on beside the matmul of another.
TEST(PlanGraph, MatmulsRunBesidePartsOfTheirExchanges) {
  const Graph graph = layered_step(6, 1024, 256, "f32");
  PlanGraphOptions options;
  options.target.features = kBlocked;
  options.target.rates.link_bytes_per_second = 1e9;
  options.target.rates.link_latency_seconds = 1e-6;
  options.passes.settings.strategy = {make_mesh({{"tp", 2}}), 0};
  options.passes.settings.strategy.overlap_bytes = 0;
  const Schedule parts = plan_graph(graph, nullptr, options).plan.schedule;
  verify(parts);
  const MemoryBudget tight = {MemoryBudget::Kind::kBytes, parts.needed_bytes() - parts.peak_bytes() / 16};
  PlanGraphOptions one_piece = options;
  one_piece.passes.without = {"cut_exchanges"};
  const Schedule whole = plan_graph(graph, nullptr, one_piece).plan.schedule;
  const Timeline hides = simulate(parts, options.target), waits = simulate(whole, options.target);
  EXPECT_LT(hides.seconds, waits.seconds);
  EXPECT_LT(hides.exposed_seconds, 0.9 * waits.exposed_seconds);
  options.budget = tight;
  EXPECT_LE(plan_graph(graph, nullptr, options).plan.schedule.needed_bytes(), tight.bytes);
  // Where a message takes longer than its bytes, nothing is cut.
  options.budget = {};
  options.target.rates.link_latency_seconds = one_piece.target.rates.link_latency_seconds = 1e-2;
  EXPECT_EQ(hash_of(plan_graph(graph, nullptr, options).plan.schedule),
            hash_of(plan_graph(graph, nullptr, one_piece).plan.schedule));
}

}  // namespace
}  // namespace stepc
