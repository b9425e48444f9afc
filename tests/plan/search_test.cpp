// The search over strategies: what it may leave out, what it says of what does not fit.
#include "plan/search.h"

#include <algorithm>
#include <cstdlib>
#include <random>

#include <gtest/gtest.h>

#include "base/text.h"
#include "plan/plan_graph.h"
#include "plan/search_text.h"
#include "plan/simulate.h"
#include "tests/expect_user_error.h"
#include "tests/plan/layered_step.h"

namespace stepc {
namespace {

constexpr int64_t kWidth = 256;

Graph step_of(int64_t layers, int64_t rows) { return layered_step(layers, rows * 64, kWidth, "bf16"); }

SearchModel model_of(int64_t layers, int64_t rows) {
  SearchModel model{.layers = layers, .heads = 4, .tokens = 64, .rows = rows, .capture = {}};
  model.capture = [rows](int64_t deep, bool) { return step_of(deep, rows); };
  return model;
}

// Of layers that can be stages.
SearchModel model_in_parts(int64_t layers, int64_t rows) {
  SearchModel model = model_of(layers, rows);
  model.most_stages = layers;
  return model;
}

Cluster cluster_of(int64_t devices) {
  Cluster cluster = named_cluster(str("h100x{}", devices));
  cluster.target.gpu->memory_bytes = 1 << 30;
  return cluster;
}

SearchOptions whole_steps() {
  SearchOptions options;
  options.pins.micro_batches = 1;
  return options;
}

TEST(Search, KnowsAllWaysOfItsDevices) {
  const SearchModel model = model_of(4, 8);
  const std::vector<Candidate> all = candidates(model, cluster_of(4), whole_steps().pins);
  // tp 1, 2, 4; cp what is left of it; dp_shard of that with zero 1 and 3, or none.
  for (const Candidate& one : all) {
    EXPECT_EQ(one.dp_replicate * one.dp_shard * one.cp * one.tp, 4);
    EXPECT_EQ(one.zero > 0, one.dp_shard * one.cp > 1);
    EXPECT_NE(one.zero, 2) << "of one micro-batch zero 2 is zero 1";
  }
  EXPECT_EQ(std::ranges::count(all, 4, &Candidate::tp), 1);
  EXPECT_EQ(std::ranges::count(all, 4, &Candidate::dp_shard), 2);
  SearchPins pins;
  pins.tp = 2;
  pins.zero = 2;
  for (const Candidate& one : candidates(model, cluster_of(8), pins)) {
    EXPECT_EQ(one.tp, 2);
    EXPECT_TRUE(one.zero == 2 || one.dp_shard == 1);
    EXPECT_EQ(8 % (one.micro_batches * one.dp_replicate * one.dp_shard), 0);
  }
}

TEST(Search, RefusesPinsThatContradict) {
  SearchPins pins;
  pins.tp = 3;
  EXPECT_USER_ERROR(candidates(model_of(4, 8), cluster_of(4), pins),
                    "parallel.tp = 3: the cluster has 4 devices, which is no multiple");
  pins.tp = 2;
  pins.dp_shard = 4;
  EXPECT_USER_ERROR(
      candidates(model_of(4, 8), cluster_of(4), pins),
      "parallel.dp_shard = 4 and parallel.tp = 2 contradict each other: the cluster has 4 devices, which is no "
      "multiple of 8");
  pins = {};
  pins.tp = pins.cp = 1;
  EXPECT_USER_ERROR(candidates(model_of(4, 3), cluster_of(4), pins), "no way spreads 3 rows");
}

// What bounds leave out is never the best: the same choice as without bounds, on links and devices of all kinds, of
// whole steps and of micro-batches, which pipelines may take.
TEST(Search, BoundsLeaveTheBestIn) {
  std::mt19937_64 random(7);
  const auto among = [&](std::initializer_list<double> values) { return values.begin()[random() % values.size()]; };
  size_t left_out = 0, pipelines = 0;
  const int trials = std::getenv("STEPC_MATRIX") == nullptr ? 14 : 200;
  for (int trial = 0; trial < trials; ++trial) {
    const bool is_in_parts = trial % 2 == 1;
    Cluster cluster = cluster_of(static_cast<int64_t>(is_in_parts ? among({2, 4}) : among({2, 4, 8})));
    for (Link& link : cluster.target.rates.links) {
      link.bytes_per_second = among({1e7, 1e9, 1e11});
      link.latency_seconds = among({1e-7, 1e-5});
    }
    cluster.target.gpu->memory_bytes = static_cast<int64_t>(among({4e5, 8e5, 1e9}));
    const auto layers = static_cast<int64_t>(among({2, 4, 6}));
    SearchModel model = is_in_parts ? model_in_parts(layers, 4) : model_of(layers, 16);
    if (!is_in_parts && trial % 3 == 0) model.fp8 = Fp8Recipe::kTensorwise;
    SearchOptions options;
    if (!is_in_parts) options = whole_steps();
    if (trial % 4 == 0) options.pins.base.overlap_bytes = 0;
    options.top = trial % 2 == 0 ? 1 : 3;
    const SearchResult pruned = search(model, cluster, options);
    options.is_exhaustive = true;
    const SearchResult whole = search(model, cluster, options);
    ASSERT_EQ(pruned.best() == nullptr, whole.best() == nullptr);
    if (whole.best() == nullptr) continue;
    for (size_t i = 0; i < std::min(options.top, whole.outcomes.size()); ++i) {
      if (whole.outcomes[i].verdict != Verdict::kPlanned) break;
      EXPECT_EQ(pruned.outcomes[i].seconds, whole.outcomes[i].seconds) << to_text(whole.outcomes[i].candidate);
    }
    for (const Outcome& one : whole.outcomes)
      if (one.verdict == Verdict::kPlanned) {
        EXPECT_LE(one.least_seconds, one.seconds) << to_text(one.candidate);
        EXPECT_LE(one.least_bytes, one.bytes()) << to_text(one.candidate);
        pipelines += one.candidate.pp > 1 ? 1 : 0;
      }
    for (const Outcome& one : pruned.outcomes) {
      const auto all = std::ranges::find(whole.outcomes, one.candidate, &Outcome::candidate);
      if (all->verdict != Verdict::kPlanned) continue;
      EXPECT_TRUE(one.verdict == Verdict::kPlanned || one.verdict == Verdict::kNotFaster) << one.why;
      EXPECT_LE(one.least_seconds, all->seconds * (1 + 1e-9)) << to_text(one.candidate);
    }
    left_out += pruned.count(Verdict::kNotFaster);
  }
  EXPECT_GT(left_out, 0U);
  EXPECT_GT(pipelines, 0U);
}

// What a pass gains is what its absence costs.
TEST(Search, LeavesPassesOut) {
  SearchOptions options = whole_steps();
  const double with = search(model_of(4, 128), cluster_of(4), options).best()->seconds;
  options.without = {"fuse"};
  EXPECT_GT(search(model_of(4, 128), cluster_of(4), options).best()->seconds, with);
}

TEST(Search, SaysWhatItHasNotLookedAt) {
  const SearchModel model = model_of(4, 8);
  SearchOptions options = whole_steps();
  const SearchResult whole = search(model, cluster_of(4), options);
  EXPECT_EQ(whole.open(), 0U);
  options.most_plans = 1;
  const SearchResult stopped = search(model, cluster_of(4), options);
  EXPECT_LT(stopped.planned, whole.planned);
  EXPECT_EQ(stopped.outcomes.size(), whole.outcomes.size());
  EXPECT_GT(stopped.open(), 0U);
  size_t counted = stopped.open();
  for (const Verdict verdict :
       {Verdict::kPlanned, Verdict::kNotFaster, Verdict::kDoesNotFit, Verdict::kTooLarge, Verdict::kImpossible})
    counted += stopped.count(verdict);
  EXPECT_EQ(counted, stopped.outcomes.size());
  const std::string text = to_text(stopped, {}, cluster_of(4), 5);
  EXPECT_NE(text.find(str("{} of {} ways were not looked at to the end", stopped.open(), stopped.outcomes.size())),
            std::string::npos)
      << text;
}

TEST(Search, OfAPipelineItTellsHowLongRanksWait) {
  SearchOptions options;
  options.pins.pp = 2;
  options.pins.micro_batches = 2;
  const SearchModel model = model_in_parts(6, 4);
  const SearchResult result = search(model, cluster_of(2), options);
  ASSERT_NE(result.best(), nullptr) << result.outcomes.front().why;
  const Outcome& best = *result.best();
  EXPECT_EQ(to_text(best.candidate), "pp=2, 2 micro-batches");
  EXPECT_EQ(family_of(best.candidate), Family::kPipeline);
  EXPECT_GT(best.waiting_seconds, 0.2 * best.seconds);  // a third of two micro-batches on two ranks
  EXPECT_LT(best.waiting_seconds, 0.5 * best.seconds);
  // A third layer a stage is what it adds to the second; of the weights each rank has half, and of held gradients,
  // which are in float32.
  EXPECT_EQ(best.state_bytes, uint64_t{6} / 2 * kWidth * kWidth * (2 + 4));
  const std::string text = to_text(result, {.title = "a model", .rows = 4, .tokens = 64}, cluster_of(2), 5);
  EXPECT_NE(text.find("pp=2, 2 micro-batches, waits "), std::string::npos) << text;
  EXPECT_NE(text.find("[parallel]\npp = 2\n"), std::string::npos) << text;
  options.pins.pp = 4;
  EXPECT_USER_ERROR(search(model_in_parts(3, 4), cluster_of(4), options),
                    "parallel.pp = 4: the model has 3 layers, and each of 4 stages needs one");
}

TEST(Search, AStepWithoutLayersHasNoStages) {
  SearchModel model = model_of(1, 4);
  model.most_stages = 0;
  model.cut = [](const Candidate&, Strategy&, const RecomputeOptions*) { return StepCut(); };
  SearchPins pins;
  pins.pp = 2;
  EXPECT_USER_ERROR(candidates(model, cluster_of(2), pins),
                    "parallel.pp = 2: the model has 0 layers, and each of 2 stages needs one");
}

TEST(Search, OnCpusMemoryIsTheClusters) {
  Cluster cluster;
  cluster.name = "here";
  cluster.devices_per_node = 4;
  cluster.cpu_memory_bytes = 1 << 30;
  const SearchResult roomy = search(model_of(4, 8), cluster, whole_steps());
  ASSERT_NE(roomy.best(), nullptr);
  EXPECT_LE(roomy.best()->bytes(), uint64_t{1} << 30);
  cluster.cpu_memory_bytes = static_cast<int64_t>(roomy.best()->bytes()) - 1;
  const SearchResult narrow = search(model_of(4, 8), cluster, whole_steps());
  ASSERT_NE(narrow.best(), nullptr);
  EXPECT_LT(narrow.best()->bytes(), roomy.best()->bytes());
  EXPECT_TRUE(narrow.best()->recomputes || narrow.best()->candidate != roomy.best()->candidate);
  cluster.cpu_memory_bytes = 1000;
  EXPECT_NE(nothing_fits(search(model_of(4, 8), cluster, whole_steps()), cluster).find("than the 1000 B of CPU"),
            std::string::npos);
}

TEST(Search, WaysThatARuleDoesNotFitCannotBe) {
  SearchOptions options = whole_steps();
  options.pins.base.rules = {{"w*", {{0, "tp"}}}};
  const SearchResult result = search(model_of(4, 8), cluster_of(4), options);
  ASSERT_NE(result.best(), nullptr);
  for (const Outcome& one : result.outcomes) EXPECT_EQ(one.verdict == Verdict::kImpossible, one.candidate.tp == 1);
  options.pins.tp = 1;
  const SearchResult none = search(model_of(4, 8), cluster_of(4), options);
  EXPECT_NE(nothing_fits(none, cluster_of(4)).find("no way can be: the rule 'w*' splits dimension 0 along 'tp'"),
            std::string::npos);
}

// Of equal layers the third is what it adds to the second, to the byte.
TEST(Search, AFurtherLayerAddsWhatTheOthersDo) {
  SearchOptions options = whole_steps();
  options.pins.dp_shard = 4;
  options.pins.zero = 3;
  const auto state = [&](int64_t layers) {
    return search(model_of(layers, 8), cluster_of(4), options).best()->state_bytes;
  };
  constexpr uint64_t kLayerOfARank = kWidth * kWidth * 2 / 4;
  EXPECT_EQ(state(4), 4 * kLayerOfARank);
  EXPECT_EQ(state(40), 40 * kLayerOfARank);
  EXPECT_EQ(state(1), kLayerOfARank);
}

// Of two layers it says what 24 recompute: as much as their own plan does, and no more than there is.
TEST(Search, WhatRecomputesFitsWithAllItsLayers) {
  constexpr int64_t kLayers = 12, kRows = 512, kProducts = 6;
  const auto capture = [](int64_t layers, bool) {
    return layered_step(layers * kProducts, kRows * 64, kWidth, "bf16", kProducts);
  };
  SearchModel model = model_of(kLayers, kRows);
  model.capture = capture;
  SearchOptions options = whole_steps();
  options.pins.dp_shard = 4;
  options.pins.zero = 3;
  Cluster cluster = cluster_of(4);
  const Outcome roomy = *search(model, cluster, options).best();
  ASSERT_FALSE(roomy.recomputes);
  for (const double part : {0.9, 0.7}) {
    SCOPED_TRACE(part);
    const auto most = static_cast<uint64_t>(part * static_cast<double>(roomy.bytes()));
    cluster.target.gpu->memory_bytes = static_cast<int64_t>(most);
    const SearchResult result = search(model, cluster, options);
    ASSERT_NE(result.best(), nullptr) << result.outcomes[0].why;
    const Outcome& squeezed = *result.best();
    EXPECT_TRUE(squeezed.recomputes);
    EXPECT_LE(squeezed.bytes(), most);
    PlanGraphOptions whole;
    whole.target = cluster.target;
    whole.passes.settings.strategy = strategy_of(squeezed.candidate, options.pins.base);
    whole.budget = {MemoryBudget::Kind::kBytes, most};
    const Schedule schedule = plan_graph(capture(kLayers, false), nullptr, whole).plan.schedule;
    EXPECT_LE(schedule.needed_bytes(), most);
    EXPECT_NEAR(static_cast<double>(squeezed.bytes()) / static_cast<double>(schedule.needed_bytes()), 1, 0.15);
    EXPECT_NEAR(squeezed.seconds / simulate(schedule, cluster.target).seconds, 1, 0.1);
  }
}

TEST(Search, SaysWhyNothingFits) {
  Cluster cluster = cluster_of(4);
  cluster.target.gpu->memory_bytes = 1000;
  const SearchResult result = search(model_of(4, 8), cluster, whole_steps());
  EXPECT_EQ(result.best(), nullptr);
  EXPECT_EQ(result.count(Verdict::kTooLarge), result.outcomes.size());
  const std::string text = to_text(
      result,
      {.title = "a model", .rows = 8, .tokens = 64, .flops_per_token = 1e6, .full_attention_flops_per_token = 2e6},
      cluster, 5);
  EXPECT_NE(text.find("nothing fits: what takes least memory is"), std::string::npos) << text;
}

TEST(Search, TellsWhatWouldHelpMost) {
  const Cluster cluster = cluster_of(4);  // 1 GiB each
  SearchResult result;
  result.outcomes = {{.candidate = {.dp_shard = 4, .zero = 3},
                      .verdict = Verdict::kPlanned,
                      .seconds = 10,
                      .exposed_seconds = 3,
                      .roomy_seconds = 10},
                     {.candidate = {.dp_replicate = 4},
                      .verdict = Verdict::kDoesNotFit,
                      .seconds = 12,
                      .roomy_seconds = 9,
                      .roomy_bytes = uint64_t{3} << 30}};
  EXPECT_EQ(
      helps_most(result, cluster),
      "what would help most: links twice as fast, 15 % less: 3.000 s of the step are exchanges that nothing hides");
  result.outcomes[0].exposed_seconds = 1;
  EXPECT_EQ(helps_most(result, cluster),
            "what would help most: 3.0 GiB a device, of which there are 1.0 GiB: dp_replicate=4 would take 9.000 s, 10 "
            "% less");
  result.outcomes[0].exposed_seconds = 0;
  result.outcomes[1].roomy_seconds = 0;  // never planned
  EXPECT_EQ(helps_most(result, cluster),
            "what would help most: devices that compute faster; neither more memory nor faster links gain 1 %");
}

TEST(Search, TellsTheBestAndWhyNotOthers) {
  const Cluster cluster = cluster_of(4);
  const SearchResult result = search(model_of(4, 8), cluster, whole_steps());
  ASSERT_NE(result.best(), nullptr);
  const SearchSubject subject{
      .title = "a model", .rows = 8, .tokens = 64, .flops_per_token = 1e6, .full_attention_flops_per_token = 2e6};
  const std::string text = to_text(result, subject, cluster, 3);
  for (const char* part : {"a model, 8 rows of 64 tokens a step, on 1 node of 4 NVIDIA H100 80GB", "MFU",
                           "other families, the best of each", "the first, in run.toml\n[parallel]\n", "predictions"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  EXPECT_EQ(text.find("\n  4  "), std::string::npos) << "three are shown";
  EXPECT_NE(to_json(result, subject, cluster).find("\"verdict\": \"planned\""), std::string::npos);
}

}  // namespace
}  // namespace stepc
