// A few steps on ranks that are threads of this process, against the same steps of one rank: in float64 both compute
// the same, but for the order of sums.
#include "tests/train/rank_learner_test.h"

namespace stepc::train {
namespace {

TEST_F(RankLearnerTest, EveryMeshTakesTheStepsOfOneRank) {
  for (const Setting& setting : std::vector<Setting>{{"dp_replicate=2"},
                                                     {"dp_shard=2", 1},
                                                     {"dp_shard=2", 2},
                                                     {"dp_shard=2", 3},
                                                     {"dp_shard=3", 3},
                                                     {"dp_replicate=2,dp_shard=2", 3},
                                                     {"tp=2"},
                                                     {"tp=2", 0, 1, "adamw", "float64", false},
                                                     {"dp_shard=2,tp=2", 3},
                                                     {"cp=2"}})
    expect_same(setting, 1e-10, 1e-9);
}

TEST_F(RankLearnerTest, PackedDocumentsGoAroundARing) {
  Setting setting{"cp=4", 0};
  setting.context = Context::kRing;
  setting.packs_documents = true;
  expect_same(setting, 1e-10, 1e-9);
}

TEST_F(RankLearnerTest, MicroBatchesAddUp) {
  expect_same({"dp_replicate=2", 0, 2}, 1e-10, 1e-9);
  expect_same({"dp_shard=2", 1, 2}, 1e-10, 1e-9);
  expect_same({"dp_shard=2", 3, 2}, 1e-10, 1e-9);
  expect_same({"dp_shard=3", 3, 2}, 1e-10, 1e-9);  // 4 rows are 2 on each
  expect_same({"dp_shard=2,tp=2", 3, 2}, 1e-10, 1e-9);
  for (const int zero : {1, 2, 3}) expect_same({"dp_shard=2,cp=2", zero, 2}, 1e-10, 1e-9);
}

// Of five replays the first, the third and the fifth; of three times five micro-batches one in two, and of the counts
// of their labels.
TEST_F(RankLearnerTest, PlansAreComparedAsOftenAsAsked) {
  const auto compared = [&](const char* verify, int64_t micro_batches) {
    Setting setting{"dp_shard=2", 3, micro_batches};
    setting.verify = verify;
    setting.steps = 5;
    return on_every(strategy_of(setting), [&](const std::shared_ptr<Ranks>& ranks) {
      RankLearner learner(model(setting), config(setting), strategy_of(setting), ranks);
      return train(learner, setting).stats.verifications;
    });
  };
  EXPECT_EQ(compared("off", 1), (std::vector<uint64_t>{0, 0}));
  EXPECT_EQ(compared("every:2", 1), (std::vector<uint64_t>{3, 3}));
  EXPECT_EQ(compared("first", 3), (std::vector<uint64_t>{3, 3}));
  EXPECT_EQ(compared("every:2", 3), (std::vector<uint64_t>{8 + 8 + 3, 8 + 8 + 3}));
}

TEST_F(RankLearnerTest, EveryOptimizerTakesTheStepsOfOneRank) {
  for (const char* optimizer : {"agd", "wsam", "lion", "sgd"})
    expect_same({"dp_shard=2", 3, 1, optimizer}, 1e-10, 1e-9);
  expect_same({"dp_shard=2", 2, 2, "wsam"}, 1e-10, 1e-9);
  expect_same({"dp_shard=2", 3, 2, "wsam"}, 1e-10, 1e-9);
  expect_same({"dp_replicate=2", 0, 2, "wsam"}, 1e-10, 1e-9);
}

TEST_F(RankLearnerTest, AdaptersAreTrainedOnRanks) {
  expect_same({"dp_shard=2", 3, 1, "adamw", "float64", true, 4}, 1e-10, 1e-9);
}

TEST_F(RankLearnerTest, NarrowTypesComeNear) {
  expect_same({"dp_shard=2", 3, 2, "adamw", "float32"}, 1e-4, 1e-3);
  expect_same({"dp_shard=2", 2, 1, "adamw", "bfloat16"}, 3e-2, 1e-2);
  expect_same({"dp_shard=2", 3, 1, "adamw", "float16"}, 3e-2, 1e-2);
}

// Half the bytes of gradients, and errors of bfloat16 in them alone: clipping's norm and the loss are not sent so.
TEST_F(RankLearnerTest, GradientsAreSentAsBfloat16) {
  Setting setting{"dp_replicate=2", 0, 1, "adamw", "float32"};
  const Outcome one = on_one(setting), wide = on_ranks(setting);
  setting.reduce = DType::kBF16;
  const Outcome narrow = on_ranks(setting);
  EXPECT_EQ(narrow.losses[0], wide.losses[0]);
  EXPECT_NEAR(narrow.norms[0], one.norms[0], 1e-2 * one.norms[0]);
  EXPECT_NE(narrow.norms[0], wide.norms[0]);
  EXPECT_NEAR(narrow.held_out, one.held_out, 0.005 * one.held_out);
  setting.mesh = "dp_shard=2";
  setting.zero = 2;
  setting.micro_batches = 2;
  EXPECT_NEAR(on_ranks(setting).held_out, on_one(setting).held_out, 0.005 * one.held_out);
}

// What ranks do together a bucket at a time they do bit by bit as one by one.
TEST_F(RankLearnerTest, BucketsChangeNoBit) {
  for (const auto& [mesh, compute] : {std::pair("dp_shard=2", "bfloat16"), {"dp_replicate=2,dp_shard=2", "float32"}}) {
    Setting setting{mesh, 3, 1, "adamw", compute};
    const Outcome together = on_ranks(setting);
    setting.has_buckets = false;
    const Outcome alone = on_ranks(setting);
    EXPECT_EQ(together.losses, alone.losses) << mesh;
    EXPECT_EQ(together.norms, alone.norms) << mesh;
    EXPECT_LT(together.stats.instructions + 20, alone.stats.instructions) << mesh;
    ASSERT_EQ(together.weights.size(), alone.weights.size());
    for (size_t w = 0; w < alone.weights.size(); ++w)
      EXPECT_TRUE(at::equal(alone.weights[w].second, together.weights[w].second))
          << mesh << ": " << alone.weights[w].first;
  }
}

// Against the float64 run of one rank: how far the losses are away.
TEST_F(RankLearnerTest, Float32ErrsOnRanksAsItDoesOnOne) {
  const Outcome exact = on_one({"", 0, 1, "adamw", "float64"});
  const auto error_of = [&](const Outcome& outcome) {
    double error = 0;
    for (size_t i = 0; i < exact.losses.size(); ++i)
      error = std::max(error, std::abs(outcome.losses[i] - exact.losses[i]));
    return error;
  };
  const double alone = error_of(on_one({"", 0, 1, "adamw", "float32"}));
  EXPECT_GT(alone, 0);
  for (const char* mesh : {"dp_shard=2", "dp_replicate=2"})
    EXPECT_LE(error_of(on_ranks({mesh, 3, 1, "adamw", "float32"})), 2 * alone) << mesh;
}

TEST_F(RankLearnerTest, SizesThatDoNotDivideArePadded) {
  make_model(
      [](models::DecoderConfig& shape) {
        shape.vocab_size = 4099;
        shape.hidden_size = 40;
        shape.num_attention_heads = shape.num_key_value_heads = 5;
      },
      [](const std::string& /*name*/, at::Tensor /*weight*/) {});
  for (const char* mesh : {"dp_shard=3", "tp=3"}) expect_same({mesh, 3}, 1e-10, 1e-9);
}

TEST_F(RankLearnerTest, DocumentsArePackedOnRanks) {
  expect_same({"dp_shard=2", 3, 1, "adamw", "float64", true, 0, true}, 1e-10, 1e-9);
}

TEST_F(RankLearnerTest, BadIndicesAreFoundBeforeAStep) {
  Batch good = batch(1, 0);
  check_indices(good, kTokens);  // with rows that have no label
  good.labels[0][3][5] = kTokens;
  EXPECT_USER_ERROR(check_indices(good, kTokens), "the batch has the token 259, and the model knows 0 to 258");
  Batch bad = batch(1, 0);
  bad.tokens[0][3][5] = -100;
  EXPECT_USER_ERROR(check_indices(bad, kTokens), "the batch has the token -100, and the model knows 0 to 258");
}

// The rows of rank 0 are all of one token, whose embedding is zero: nothing that is not finite comes of it.
TEST_F(RankLearnerTest, WhereALossIsNotANumberIsFound) {
  make_model([](models::DecoderConfig& /*shape*/) {},
             [](const std::string& name, at::Tensor weight) {
               if (name.ends_with("embed_tokens.weight")) weight[0].zero_();
               if (name.ends_with("1.mlp.gate_proj.weight") || name.ends_with("1.mlp.up_proj.weight"))
                 weight.mul_(1e25);
             });
  for (const Setting& setting :
       {Setting{"dp_shard=2", 3, 1, "adamw", "float32"}, Setting{"dp_replicate=2", 0, 2, "adamw", "float32"}}) {
    const Strategy strategy = strategy_of(setting);
    const auto found = on_every(strategy, [&](const std::shared_ptr<Ranks>& ranks) {
      RankLearner learner(model(setting), config(setting), strategy, ranks);
      Batch bad = batch(setting, 0);
      bad.tokens.clamp_(1);
      bad.tokens.flatten(0, 1).slice(0, 0, setting.micro_batches * kRows / 2).zero_();  // those of rank 0
      learner.plan(bad);
      learner.load(config(setting));
      EXPECT_FALSE(std::isfinite(learner.step(bad, 1e-3).loss));
      const std::string weight = learner.find_nonfinite_in(bad).value_or("");
      EXPECT_TRUE(weight.starts_with("the weight ")) << weight;  // that the step has left
      learner.restore_fresh(directory_ / "model", config(setting));
      return learner.find_nonfinite_in(bad).value_or("");
    });
    EXPECT_TRUE(found[0].starts_with("model.layers.1.mlp") && found[0].ends_with(" on rank 1")) << found[0];
    EXPECT_EQ(found[1], found[0]);
  }
}

// One bit of one element, where it is held alike by all, by two, by nobody else.
TEST_F(RankLearnerTest, ReplicasThatDifferAreNamed) {
  const auto found = [&](const Setting& setting, int64_t bad, bool in_state) {
    const Strategy strategy = strategy_of(setting);
    const auto said = on_every(strategy, [&](const std::shared_ptr<Ranks>& ranks) {
      RankLearner learner(model(setting), config(setting), strategy, ranks);
      train(learner, setting);
      NamedTensors mine = in_state ? without_generator(learner.state()) : learner.weights();
      if (ranks->rank() == bad) *static_cast<uint8_t*>(mine.at(0).second.mutable_data_ptr()) ^= 1;
      return learner.find_unlike_replica().value_or("nothing");
    });
    for (const std::string& text : said) EXPECT_EQ(text, said[0]);
    return said[0];
  };
  const auto expect = [](const std::string& text, const std::string& begin, const std::string& end) {
    EXPECT_TRUE(text.starts_with(begin) && text.ends_with(end)) << text;
  };
  expect(found({.mesh = "dp_replicate=3", .steps = 1}, 1, false), "parameter '",
         "': rank 1 has other values than ranks 0, 2, which agree");
  expect(found({.mesh = "dp_replicate=4", .steps = 1}, 3, true), "optimizer_state '",
         "': rank 3 has other values than ranks 0, 1, 2, which agree");
  expect(found({.mesh = "dp_replicate=2", .steps = 1}, 0, false), "parameter '",
         "': ranks 0, 1 should hold the same and do not, and no more than half of them agree on what is right");
  expect(found({.mesh = "dp_replicate=2,dp_shard=2", .zero = 3, .steps = 1}, 3, false), "parameter '",
         "': ranks 1, 3 should hold the same and do not, and no more than half of them agree on what is right");
  EXPECT_EQ(found({.mesh = "dp_shard=2", .zero = 3, .steps = 1}, 1, false), "nothing");  // nobody else has it
}

// Of a mesh that splits rows, shards, sequence and classes, the text that the model alone would go on with.
TEST_F(RankLearnerTest, TextIsSampledOnRanks) {
  const std::string prompt = "what is there to say of it";
  const SampleOptions options{.tokens = 2 * kSequence, .seed = 3};  // more than a row has
  const Setting alone{"", 0};
  LocalLearner one(model(alone), config(alone));
  one.load(config(alone));
  const std::string expected = one.sample(prompt.substr(0, 10), {.tokens = 10, .seed = 3}).text;
  for (const char* mesh : {"dp_shard=2", "tp=2", "cp=2"}) {
    const Setting setting{mesh, 3};
    const auto texts = on_every(strategy_of(setting), [&](const std::shared_ptr<Ranks>& ranks) {
      RankLearner learner(model(setting), config(setting), strategy_of(setting), ranks);
      learner.plan(batch(1, 0));
      learner.load(config(setting));
      EXPECT_FALSE(learner.sample(prompt, options).text.empty());
      return learner.sample(prompt.substr(0, 10), {.tokens = 10, .seed = 3}).text;
    });
    EXPECT_EQ(texts[0], expected) << mesh;
    EXPECT_EQ(texts[1], expected) << mesh;
  }
}

// Minutes: STEPC_MATRIX=1 asks for it.
TEST_F(RankLearnerTest, TheWholeMatrix) {
  if (std::getenv("STEPC_MATRIX") == nullptr) {
    expect_same({"dp_replicate=2,dp_shard=2", 3, 2}, 1e-10, 1e-9);
    return;
  }
  std::vector<Setting> settings;
  for (const int ranks : {2, 3, 4, 8}) {
    const auto of = [&](const char* axis) { return str("{}={}", axis, ranks); };
    settings.push_back({of("dp_replicate")});
    for (const int zero : {1, 2, 3}) settings.push_back({of("dp_shard"), zero});
    settings.push_back({of("dp_shard"), 3, 4});
    settings.push_back({of("dp_shard"), 3, 1, "adamw", "float64", true, 4});
    for (const char* optimizer : {"agd", "wsam", "lion"}) settings.push_back({of("dp_shard"), 3, 1, optimizer});
    settings.push_back({of("dp_shard"), 2, 1, "adamw", "float64", true, 0, true});
  }
  settings.push_back({"dp_replicate=2,dp_shard=2", 3});
  settings.push_back({"dp_replicate=2,dp_shard=4", 3});
  for (Setting setting : settings) {
    setting.steps = 20;
    expect_same(setting, 1e-10, 1e-9);
  }
  // What is rounded at random is drawn from a generator that threads share: tests/error/test_ranks.py has processes.
  for (const char* compute : {"bfloat16", "float16"})
    for (const char* mesh : {"dp_shard=2", "dp_shard=3", "dp_shard=4", "dp_shard=8"}) {
      Setting setting{mesh, 3, 1, "adamw", compute};
      setting.steps = 20;
      const Outcome one = on_one(setting), many = on_ranks(setting);
      EXPECT_NEAR(many.held_out, one.held_out, 0.005 * one.held_out) << mesh << " " << compute;
    }
}

// The same for what splits more than rows, as docs/parallel.md lists it.
TEST_F(RankLearnerTest, TheMatrixOfAxes) {
  const bool is_whole = std::getenv("STEPC_MATRIX") != nullptr;
  std::vector<Setting> settings;
  for (const char* mesh : {"dp_shard=2,cp=2,tp=2", "tp=2", "tp=4", "dp_shard=2,tp=2", "dp_shard=2,tp=4",
                           "dp_replicate=2,tp=2", "dp_replicate=2,dp_shard=2,tp=2", "cp=2", "cp=4", "dp_shard=2,cp=2",
                           "dp_replicate=2,cp=2", "dp_replicate=2,dp_shard=2,cp=2", "cp=2,tp=2"}) {
    const Mesh axes = parse_mesh(mesh);
    for (const Context context : {Context::kRing, Context::kHeads, Context::kGather})
      for (const bool sequence_parallel : {true, false}) {
        if (!axes.find("cp") && context != Context::kGather) continue;
        if (!axes.find("tp") && !sequence_parallel) continue;
        if (context == Context::kHeads && (axes.find("tp") || axes.size(*axes.find("cp")) > 2))
          continue;  // 2 key heads
        settings.push_back({mesh, 3, 1, "adamw", "float64", sequence_parallel});
        settings.back().context = context;
      }
  }
  if (!is_whole) settings.resize(1);
  for (const Setting& setting : settings) expect_same(setting, 1e-10, 1e-9);
}

// Exchanges that go on beside the computation: the numbers of one process, and the bits of exchanges that block.
TEST_F(RankLearnerTest, ExchangesGoOnBesideTheComputation) {
  for (const char* mesh : {"dp_shard=2", "dp_replicate=2", "dp_shard=2,tp=2", "cp=2"}) {
    Setting setting = {mesh, 3};
    if (parse_mesh(mesh).find("cp")) setting.context = Context::kRing;
    const auto blocking = run_steps(setting, 0, 3, {}, directory_ / "blocking");
    setting.overlaps = true;
    expect_same(setting, 1e-10, 1e-9);
    EXPECT_EQ(run_steps(setting, 0, 3, {}, directory_ / "overlapped"), blocking) << mesh;
  }
}

// One is lost while the others take a step. They keep what the step before has left, and the one in its place takes
// from them what they hold alike; all go on with the bits of a run that nobody disturbed.
TEST_F(RankLearnerTest, OneInThePlaceOfALostRankTakesWhatItsReplicaHolds) {
  for (const Setting& setting :
       std::vector<Setting>{{"dp_replicate=2,dp_shard=2", 1, 1, "adamw", "bfloat16"}, {"pp=2,dp_replicate=2", 0, 2}}) {
    SCOPED_TRACE(setting.mesh);
    const Strategy strategy = strategy_of(setting);
    const auto steps = [&](Learner& learner, int64_t begin, int64_t end) {
      std::vector<double> losses;
      for (int64_t step = begin; step < end; ++step)
        losses.push_back(learner.step(batch(setting, static_cast<uint64_t>(step)), 1e-3).loss);
      return losses;
    };
    const auto planned = [&](const std::shared_ptr<Ranks>& ranks) {
      auto learner = std::make_unique<RankLearner>(model(setting), config(setting), strategy, ranks);
      learner->plan(batch(setting, 0));
      EXPECT_FALSE(learner->leave()) << "it has loaded nothing";
      return learner;
    };
    constexpr int64_t kLost = 1;
    std::vector<std::shared_ptr<Ranks>> all = Ranks::threads(strategy.mesh.ranks());
    std::vector<std::optional<KeptState>> kept(static_cast<size_t>(strategy.mesh.ranks()));
    const auto whole = on_every(strategy, [&](const std::shared_ptr<Ranks>& ranks) {
      const auto learner = planned(ranks);
      learner->load(config(setting));
      return steps(*learner, 0, 4);
    });
    const auto lose_one = [&](const std::shared_ptr<Ranks>& ranks) {
      const auto learner = planned(ranks);
      learner->load(config(setting));
      steps(*learner, 0, 2);
      if (ranks->rank() == kLost) return;
      EXPECT_THROW(steps(*learner, 2, 3), LostRank);
      kept[static_cast<size_t>(ranks->rank())] = learner->leave();
    };
    std::vector<std::future<void>> threads;
    for (std::shared_ptr<Ranks>& ranks : all)
      threads.push_back(std::async(std::launch::async, [&lose_one, &ranks] {
        at::set_num_threads(1);
        lose_one(ranks);
        ranks.reset();  // its connections break
      }));
    for (std::future<void>& thread : threads) thread.get();
    for (int64_t rank = 0; rank < std::ssize(kept); ++rank)
      EXPECT_EQ(kept[static_cast<size_t>(rank)].has_value(), rank != kLost) << rank;
    const auto rest = on_every(strategy, [&](const std::shared_ptr<Ranks>& ranks) {
      const auto learner = planned(ranks);
      EXPECT_FALSE(learner->take_over(nullptr)) << "nobody has kept anything";
      const auto& own = kept[static_cast<size_t>(ranks->rank())];
      EXPECT_TRUE(learner->take_over(own ? &*own : nullptr));
      EXPECT_EQ(learner->find_unlike_replica(), std::nullopt);
      return steps(*learner, 2, 4);
    });
    for (size_t rank = 0; rank < rest.size(); ++rank)
      EXPECT_EQ(rest[rank], std::vector<double>(whole[rank].begin() + 2, whole[rank].end())) << rank;
  }
}

// A part that only the lost rank held, and a plan of other parts.
TEST_F(RankLearnerTest, WhatNobodyHasKeptIsNotTakenOver) {
  const Setting setting{"dp_shard=2", 3}, other{"dp_shard=2", 1};
  on_every(strategy_of(setting), [&](const std::shared_ptr<Ranks>& ranks) {
    const auto planned = [&](const Setting& of) {
      auto learner = std::make_unique<RankLearner>(model(of), config(of), strategy_of(of), ranks);
      learner->plan(batch(of, 0));
      return learner;
    };
    const auto first = planned(setting);
    first->load(config(setting));
    const std::optional<KeptState> kept = first->leave();
    EXPECT_TRUE(kept);
    EXPECT_FALSE(planned(setting)->take_over(ranks->rank() == 0 ? &*kept : nullptr));
    EXPECT_FALSE(planned(other)->take_over(&*kept));
    EXPECT_TRUE(planned(setting)->take_over(&*kept));
    return 0;
  });
  LocalLearner local(model(setting), config(setting));
  EXPECT_FALSE(local.leave() || local.take_over(nullptr));
}

TEST_F(RankLearnerTest, ARunGoesOnOnAnyMesh) {
  const Setting before = {"dp_shard=2", 3};
  const auto whole = run_steps(before, 0, 4, {}, directory_ / "whole");
  const auto half = run_steps(before, 0, 2, {}, directory_ / "half");
  EXPECT_EQ(half, std::vector<double>(whole.begin(), whole.begin() + 2));
  for (const Setting& after : std::vector<Setting>{before, {"dp_shard=4", 3}, {"dp_replicate=2"}, {"tp=2"}, {"cp=2"}}) {
    const fs::path to = directory_ / str("after {}", after.mesh);
    const auto rest = run_steps(after, 2, 2, directory_ / "half", to);
    const bool is_same = to == directory_ / str("after {}", before.mesh);
    for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(rest[i], whole[i + 2], is_same ? 0 : 1e-10) << after.mesh;
    const auto a = load_tensors(TensorFiles(directory_ / "whole", kOptimizerFiles)),
               b = load_tensors(TensorFiles(to, kOptimizerFiles));
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      if (!a[i].second.is_floating_point()) continue;
      EXPECT_LE((a[i].second - b[i].second).abs().max().item<double>(), is_same ? 0 : 1e-9) << a[i].first;
    }
  }
}

}  // namespace
}  // namespace stepc::train
