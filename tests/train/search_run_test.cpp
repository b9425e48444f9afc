// What a search takes a pipeline of a run for, beside the plan of that run: three stages of one and two layers say what
// all stages take.
#include "train/step/search_run.h"

#include <random>

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "cost/cluster.h"
#include "engine/prediction.h"
#include "runtime/micro_kernels.h"
#include "tests/train/rank_learner_test.h"
#include "train/config/parallel.h"
#include "train/machine/kernel_directory.h"
#include "train/step/rank_plan.h"

namespace stepc::train {
namespace {

class SearchRunTest : public RankLearnerTest {
 protected:
  RunConfig run_of(int64_t pp, int64_t layers, int64_t micro_batches) {
    make_model(
        [&](models::DecoderConfig& shape) {
          shape.num_hidden_layers = layers;
          shape.hidden_size = 128;
          shape.intermediate_size = 512;
          shape.head_dim = 32;
        },
        [](const std::string& /*name*/, at::Tensor /*weight*/) {});
    const Setting setting{str("pp={}", pp), 0, micro_batches};
    RunConfig one = config(setting);
    one.data.buckets = {};
    one.parallel.pp = pp;
    one.train.micro_batches = micro_batches;
    return one;
  }

  static Cluster cluster_of(int64_t ranks) {
    Cluster cluster;
    cluster.name = "here";
    cluster.devices_per_node = ranks;
    cluster.target = known_target(kernel_directory(), features_of(probe_micro_kernels()), 1).target;
    cluster.cpu_memory_bytes = int64_t{1} << 34;
    return cluster;
  }
};

TEST_F(SearchRunTest, APipelineTakesWhatItsPlanSays) {
  for (const auto& [pp, layers] : {std::pair<int64_t, int64_t>{2, 6}, {4, 8}}) {
    SCOPED_TRACE(str("pp = {}, {} layers", pp, layers));
    RunConfig run = run_of(pp, layers, 2 * pp);
    const models::DecoderConfig shape = read_model_config(run.model.path);
    SearchOptions options;
    options.pins.pp = pp;
    options.pins.micro_batches = run.train.micro_batches;
    const SearchResult result = search(search_model(run, shape, {}), cluster_of(pp), options);
    ASSERT_NE(result.best(), nullptr) << result.outcomes.front().why;
    const stepc::Outcome& found = *result.best();

    const Strategy strategy = train::strategy_of(run);
    const std::vector<at::Tensor> rows =
        step_rows(run, strategy.mesh, batch({str("pp={}", pp), 0, run.train.micro_batches}, 0));
    const RankPlan plan = plan_rank(capture_run(run, shape, {}, rows), run, strategy, model({}));
    std::string begins;
    for (const StagePlan& stage : plan.stages) begins += str("{} ", fmt::join(stage.begins, ","));
    SCOPED_TRACE(begins);
    const auto most = static_cast<double>(plan.largest().state_bytes + plan.largest().step_bytes());
    EXPECT_NEAR(found.seconds, plan.prediction.seconds, 0.1 * plan.prediction.seconds);
    EXPECT_NEAR(static_cast<double>(found.bytes()), most, 0.05 * most);
    EXPECT_NEAR(found.waiting_seconds / found.seconds, plan.waits, 0.05);
  }
}

// The model whose first layer is all of them: searched, it is planned in full.
SearchModel as_one_layer(SearchModel model) {
  model.capture = [layers = model.layers, capture = model.capture](int64_t, bool is_cut) {
    return capture(layers, is_cut);
  };
  model.layers = 1;
  model.most_stages = 1;
  return model;
}

// From plans of one layer and of two, the memory of models of more, of any shape and in any way.
TEST_F(SearchRunTest, ManyLayersTakeTheMemoryThatTheirPlanTakes) {
  std::mt19937_64 random(11);
  const auto among = [&](std::initializer_list<int64_t> values) { return values.begin()[random() % values.size()]; };
  const int trials = std::getenv("STEPC_MATRIX") == nullptr ? 2 : 60;
  for (int trial = 0; trial < trials; ++trial) {
    RunConfig run = run_of(1, 2, 1);
    run.model.compute = "bfloat16";
    run.data.seq_len = among({64, 256});
    run.train.batch_size = 16;
    models::DecoderConfig shape = read_model_config(run.model.path);
    shape.num_hidden_layers = among({4, 6, 8});
    shape.vocab_size = among({512, 4096, 32768});
    shape.hidden_size = among({64, 128, 256});
    shape.intermediate_size = 4 * shape.hidden_size;
    shape.head_dim = shape.hidden_size / shape.num_attention_heads;
    shape.num_key_value_heads = 4;
    shape.tie_word_embeddings = among({0, 1}) == 1;
    Cluster cluster = named_cluster("h100x4");
    SearchOptions options;
    options.pins.micro_batches = among({1, 2, 4});
    options.pins.tp = among({1, 2});
    options.pins.cp = among({1, 1, 2});
    options.pins.dp_shard = 4 / (*options.pins.tp * *options.pins.cp);
    options.pins.zero = among({1, 2, 3});
    options.pins.pp = 1;
    options.pins.dp_replicate = 1;
    const SearchModel model = search_model(run, shape, {});
    for (const double part : {1.0, 0.8}) {  // 0.8: it recomputes
      const SearchResult few = search(model, cluster, options), all = search(as_one_layer(model), cluster, options);
      SCOPED_TRACE(str("trial {}: {} layers, {} wide, {} tokens, {} words, {}, {} of the memory", trial, model.layers,
                       shape.hidden_size, run.data.seq_len, shape.vocab_size, to_text(few.outcomes[0].candidate),
                       part));
      if (all.best() == nullptr) {  // there is no such way, or what is kept is not enough to recompute
        EXPECT_EQ(few.best(), nullptr);
        break;
      }
      ASSERT_NE(few.best(), nullptr) << few.outcomes[0].why;
      const double ratio = static_cast<double>(few.best()->step_bytes) / static_cast<double>(all.best()->step_bytes);
      EXPECT_GE(ratio, 0.95);
      EXPECT_LE(ratio, 1.2);
      cluster.target.gpu->memory_bytes =
          static_cast<int64_t>(all.best()->state_bytes) + static_cast<int64_t>(0.8 * all.best()->step_bytes);
    }
  }
}

// Within less memory it recomputes, and takes what the plan of the run within that budget takes, or somewhat more.
TEST_F(SearchRunTest, APipelineRecomputesWithinItsMemory) {
  constexpr int64_t kRanks = 2, kLayers = 6;
  RunConfig run = run_of(kRanks, kLayers, 2 * kRanks);
  const models::DecoderConfig shape = read_model_config(run.model.path);
  SearchOptions options;
  options.pins.pp = kRanks;
  options.pins.micro_batches = run.train.micro_batches;
  Cluster cluster = cluster_of(kRanks);
  const stepc::Outcome roomy = *search(search_model(run, shape, {}), cluster, options).best();
  ASSERT_FALSE(roomy.recomputes);
  cluster.cpu_memory_bytes = static_cast<int64_t>(roomy.state_bytes + roomy.step_bytes * 8 / 10);
  const SearchResult result = search(search_model(run, shape, {}), cluster, options);
  ASSERT_NE(result.best(), nullptr) << result.outcomes.front().why;
  const stepc::Outcome& found = *result.best();
  EXPECT_TRUE(found.recomputes);
  EXPECT_LE(found.bytes(), static_cast<uint64_t>(cluster.cpu_memory_bytes));
  EXPECT_GT(found.seconds, roomy.seconds);

  run.memory.budget = str("{}KiB", cluster.cpu_memory_bytes / 1024);
  const Strategy strategy = train::strategy_of(run);
  const std::vector<at::Tensor> rows =
      step_rows(run, strategy.mesh, batch({str("pp={}", kRanks), 0, run.train.micro_batches}, 0));
  const RankPlan plan = plan_rank(capture_run(run, shape, {}, rows), run, strategy, model({}));
  EXPECT_LE(plan.prediction.seconds, 1.1 * found.seconds);
  EXPECT_GE(plan.prediction.seconds, 0.75 * found.seconds);
  cluster.cpu_memory_bytes = static_cast<int64_t>(roomy.state_bytes + roomy.step_bytes / 20);
  const SearchResult none = search(search_model(run, shape, {}), cluster, options);
  EXPECT_EQ(none.best(), nullptr);
  EXPECT_NE(none.outcomes.front().why.find("recomputation included"), std::string::npos) << none.outcomes.front().why;
}

// A row of one document takes longest.
TEST_F(SearchRunTest, RowsThatPackShortDocumentsTakeLess) {
  RunConfig run = run_of(1, 2, 1);
  run.data.seq_len = 1024;
  const models::DecoderConfig shape = read_model_config(run.model.path);
  SearchOptions options;
  options.pins.dp_replicate = 2;
  options.pins.micro_batches = 1;
  const auto seconds = [&](std::optional<double> document_tokens) {
    const SearchResult result = search(search_model(run, shape, {}, document_tokens), cluster_of(2), options);
    EXPECT_NE(result.best(), nullptr) << result.outcomes.front().why;
    return result.best() == nullptr ? 0.0 : result.best()->seconds;
  };
  const double whole = seconds(1024), few = seconds(64);
  EXPECT_LT(few, 0.95 * whole);
  EXPECT_NEAR(whole, seconds({}), 0.05 * whole);
}

TEST_F(SearchRunTest, MoreStagesThanLayersAreNoWay) {
  const RunConfig run = run_of(2, 2, 4);
  const SearchModel model = search_model(run, read_model_config(run.model.path), {});
  for (const Candidate& one : candidates(model, cluster_of(4), {})) EXPECT_LE(one.pp, 2);
  SearchPins pins;
  pins.pp = 4;
  EXPECT_USER_ERROR(candidates(model, cluster_of(4), pins),
                    "parallel.pp = 4: the model has 2 layers, and each of 4 stages needs one");
  RunConfig twice = run;
  twice.optim.name = "wsam";
  pins.pp = 2;
  EXPECT_USER_ERROR(candidates(search_model(twice, read_model_config(run.model.path), {}), cluster_of(4), pins),
                    "parallel.pp = 2: a step of two gradients is not searched in stages");
}

TEST_F(SearchRunTest, TheOrderSaysWhichMicroBatchesThereAre) {
  const RunConfig run = run_of(2, 4, 4);
  const SearchModel model = search_model(run, read_model_config(run.model.path), {});
  SearchPins pins;
  pins.pp = 2;
  for (const Candidate& one : candidates(model, cluster_of(2), pins)) EXPECT_GE(one.micro_batches, 2);
  pins.chunks = 2;
  for (const Candidate& one : candidates(model, cluster_of(2), pins)) EXPECT_EQ(one.micro_batches % 2, 0);
}

}  // namespace
}  // namespace stepc::train
