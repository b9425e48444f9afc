// Steps of a small model on ranks that are threads of this process, beside the same steps of one rank.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include "data/tokenizer_json.h"
#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"
#include "train/model/adapter_choice.h"
#include "train/step/local_learner.h"
#include "train/step/rank_learner.h"
#include "train/step/staged_checkpoint.h"

namespace stepc::train {
namespace fs = std::filesystem;

inline constexpr int64_t kSequence = 24;
inline constexpr int64_t kTokens = 259;
inline constexpr int64_t kRows = 4;

struct Setting {
  std::string mesh;
  int zero = 0;
  int64_t micro_batches = 1;
  const char* optimizer = "adamw";
  const char* compute = "float64";
  bool sequence_parallel = true;
  int64_t lora_rank = 0;
  bool packs_documents = false;
  DType reduce = DType::kF32;
  int64_t steps = 3;
  bool has_buckets = true;
  Context context = Context::kGather;
  const char* verify = "first";
  bool overlaps = false;  // exchanges of any size
  std::string order = "1f1b";
  std::vector<std::string> stages = {};
  int64_t chunks = 1;
  std::string budget = "none";  // of a rank of several
};

struct Outcome {
  std::vector<double> losses, norms;
  double held_out = 0;
  NamedTensors weights, state;
  Stats stats;
};

class RankLearnerTest : public ::testing::Test {
 protected:
  RankLearnerTest() {
    fs::create_directory(directory_ / "model");
    make_model([](models::DecoderConfig& /*shape*/) {}, [](const std::string& /*name*/, at::Tensor /*weight*/) {});
  }

  void make_model(const std::function<void(models::DecoderConfig&)>& change,
                  const std::function<void(const std::string& name, at::Tensor weight)>& set) {
    models::DecoderConfig shape;
    shape.vocab_size = kTokens;
    shape.hidden_size = 32;
    shape.intermediate_size = 64;
    shape.num_hidden_layers = 2;
    shape.num_attention_heads = 4;
    shape.num_key_value_heads = 2;
    shape.head_dim = 8;
    change(shape);
    models::Decoder model(shape);
    model->initialize(1);
    {
      const at::NoGradGuard no_grad;
      for (const auto& [name, weight] : model->persistent_state()) set(name, weight);
    }
    write_model_files(directory_ / "model", shape, {{"tokenizer.json", make_byte_tokenizer_json()}},
                      model->persistent_state());
  }

  [[nodiscard]] RunConfig config(const Setting& setting) const {
    RunConfig config;
    config.model.path = (directory_ / "model").string();
    config.model.compute = setting.compute;
    config.optim.name = setting.optimizer;
    config.optim.lr = 1e-3;
    config.train.micro_batches = setting.micro_batches;
    const Mesh mesh = parse_mesh(setting.mesh);
    if (const auto pp = mesh.find("pp")) config.parallel.pp = mesh.size(*pp);
    config.parallel.order = setting.order;
    config.parallel.stages = setting.stages;
    config.parallel.chunks = setting.chunks;
    config.memory.budget = setting.budget;
    config.train.batch_size = kRows;
    config.train.threads = 1;
    config.train.verify = setting.verify;
    config.data.seq_len = kSequence;
    config.lora.rank = setting.lora_rank;
    if (setting.lora_rank > 0) config.lora.targets = {"q_proj", "down_proj"};
    return config;
  }
  static Strategy strategy_of(const Setting& setting) {
    Strategy strategy;
    strategy.mesh = parse_mesh(setting.mesh);
    strategy.zero = setting.zero;
    strategy.sequence_parallel = setting.sequence_parallel;
    strategy.reduce = setting.reduce;
    if (!setting.has_buckets) strategy.bucket_bytes = 0;
    strategy.context = setting.context;
    if (setting.overlaps) strategy.overlap_bytes = 0;
    return strategy;
  }
  [[nodiscard]] ModelDirectory model(const Setting& setting) const {
    ModelDirectory directory = open_model_directory(directory_ / "model");
    choose_adapter(config(setting), directory);
    return directory;
  }

  static Batch batch(int64_t micro_batches, uint64_t seed, bool packs_documents = false) {
    const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    Batch batch;
    batch.tokens = at::randint(0, kTokens, {micro_batches, kRows, kSequence}, generator, at::kLong);
    batch.labels = at::randint(0, kTokens, {micro_batches, kRows, kSequence}, generator, at::kLong);
    batch.labels[0][1].fill_(-100);  // a row that counts nothing: of four ranks, all that one has
    if (packs_documents)             // of 7 tokens, but the last
      batch.documents =
          at::arange(kSequence, at::kLong).div(7, "floor").expand({micro_batches, kRows, kSequence}).contiguous();
    return batch;
  }
  static Batch batch(const Setting& setting, uint64_t seed) {
    return batch(setting.micro_batches, seed, setting.packs_documents);
  }

  Outcome train(Learner& learner, const Setting& setting) {
    const RunConfig run = config(setting);
    Outcome out;
    at::manual_seed(3);  // of stochastic rounding
    learner.plan(batch(setting, 0));
    learner.load(run);
    for (int64_t step = 0; step < setting.steps; ++step) {
      const TrainedStep result = learner.step(batch(setting, static_cast<uint64_t>(step)), 1e-3);
      out.losses.push_back(result.loss);
      out.norms.push_back(result.grad_norm);
    }
    out.stats = learner.stats();
    const Batch held_out = batch(1, 100).micro_batch(0);
    out.held_out = learner.summed_loss({held_out.tokens.slice(0, 0, 3), held_out.labels.slice(0, 0, 3), {}});
    out.weights = learner.weights();
    out.state = learner.state();
    return out;
  }

  Outcome on_one(Setting setting) {
    setting.budget = "none";
    LocalLearner learner(model(setting), config(setting));
    return train(learner, setting);
  }

  // Calls `act` on every rank, each a thread; what it gives, by rank.
  template <class Act>
  static auto on_every(const Strategy& strategy, const Act& act) {
    std::vector<std::future<std::invoke_result_t<Act, std::shared_ptr<Ranks>>>> threads;
    for (const auto& ranks : Ranks::threads(strategy.mesh.ranks()))
      threads.push_back(std::async(std::launch::async, [&act, ranks] {
        at::set_num_threads(1);  // as config() says: each thread has a number of its own
        return act(ranks);
      }));
    std::vector<std::invoke_result_t<Act, std::shared_ptr<Ranks>>> given;
    for (auto& thread : threads) given.push_back(thread.get());
    return given;
  }

  // Of rank 0; the others are held to its losses. The tensors are put together from what all of them save.
  Outcome on_ranks(const Setting& setting) {
    const Strategy strategy = strategy_of(setting);
    const fs::path saved = directory_ / "saved";
    fs::remove_all(saved);
    fs::create_directory(saved);
    const std::vector<Outcome> outcomes = on_every(strategy, [&](const std::shared_ptr<Ranks>& ranks) {
      RankLearner learner(model(setting), config(setting), strategy, ranks);
      Outcome out = train(learner, setting);
      EXPECT_EQ(learner.find_unlike_replica(), std::nullopt) << setting.mesh;
      EXPECT_EQ(learner.staged_bytes(), staged_bytes(out.weights, without_generator(out.state)));
      learner.write_checkpoint(saved, out.weights, out.state, system_files());
      return out;
    });
    for (const Outcome& outcome : outcomes) {
      const auto planned = static_cast<double>(outcome.stats.planned_peak_bytes);
      EXPECT_NEAR(static_cast<double>(outcome.stats.measured_peak_bytes), planned, 0.02 * planned);
      EXPECT_EQ(outcome.stats.unplanned_allocations, 0U);
      EXPECT_EQ(outcome.stats.verifications, outcome.stats.plans) << outcome.stats.verified_with;
      EXPECT_TRUE(outcome.stats.warnings.empty()) << outcome.stats.warnings[0];
    }
    for (size_t r = 1; r < outcomes.size(); ++r) EXPECT_EQ(outcomes[r].losses, outcomes[0].losses) << "rank " << r;
    Outcome out = outcomes[0];
    out.weights = load_tensors(TensorFiles(saved, setting.lora_rank > 0 ? kAdapterFiles : kModelFiles));
    out.state = load_tensors(TensorFiles(saved, kOptimizerFiles));
    return out;
  }

  static NamedTensors without_generator(NamedTensors state) {
    std::erase_if(state, [](const auto& item) { return item.first == kGeneratorState; });
    return state;
  }

  // Steps `first` and on of a run on a mesh, from a checkpoint or, of step 0, the model; leaves another one.
  std::vector<double> run_steps(const Setting& setting, int first, int count, const fs::path& from,
                                const fs::path& to) {
    const Strategy strategy = strategy_of(setting);
    return on_every(strategy, [&](const std::shared_ptr<Ranks>& ranks) {
      RankLearner learner(open_model_directory(first == 0 ? directory_ / "model" : from), config(setting), strategy,
                          ranks);
      learner.plan(batch(setting, 0));
      learner.load(config(setting));
      if (first > 0) learner.load_optimizer(from);
      std::vector<double> losses;
      for (int step = first; step < first + count; ++step)
        losses.push_back(learner.step(batch(setting, static_cast<uint64_t>(step)), 1e-3).loss);
      if (ranks->rank() == 0) fs::create_directory(to);
      ranks->barrier();
      learner.write_checkpoint(to, learner.weights(), learner.state(), system_files());
      ranks->barrier();
      return losses;
    })[0];
  }

  // What the ranks made.
  Outcome expect_same(const Setting& setting, double loss_error, double weight_error) {
    SCOPED_TRACE(str("{} zero {} {} micro-batches {} {}", setting.mesh, setting.zero, setting.micro_batches,
                     setting.optimizer, setting.compute));
    const Outcome one = on_one(setting), many = on_ranks(setting);
    for (int64_t step = 0; step < setting.steps; ++step) {
      EXPECT_NEAR(many.losses[static_cast<size_t>(step)], one.losses[static_cast<size_t>(step)], loss_error);
      EXPECT_NEAR(many.norms[static_cast<size_t>(step)], one.norms[static_cast<size_t>(step)], loss_error);
    }
    EXPECT_NEAR(many.held_out, one.held_out, 100 * loss_error);
    const auto compare = [&](NamedTensors a, NamedTensors b) {
      for (NamedTensors* list : {&a, &b}) std::ranges::sort(*list, {}, &NamedTensors::value_type::first);
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i) {
        EXPECT_EQ(a[i].first, b[i].first);
        ASSERT_EQ(a[i].second.sizes(), b[i].second.sizes()) << a[i].first;
        if (!a[i].second.is_floating_point() || a[i].second.numel() == 0) continue;
        EXPECT_LE((a[i].second - b[i].second).abs().max().item<double>(), weight_error) << a[i].first;
      }
    };
    compare(many.weights, one.weights);
    compare(many.state, one.state);
    return many;
  }

  TempDir directory_;
};

}  // namespace stepc::train
