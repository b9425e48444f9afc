// accelerate() on ranks: each of several threads a rank with a model and an optimizer of its own, as processes have.
#include "engine/ranks/rank_step.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "aten/virtual_memory.h"
#include "engine/accelerate.h"
#include "optim/adamw.h"
#include "runtime/kernel_sources.h"
#include "tests/comm/rank_threads.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

constexpr int64_t kRows = 4;
constexpr int kSteps = 4;

struct RankedModel : torch::nn::Module {
  torch::nn::Linear in{nullptr}, out{nullptr};
  RankedModel() {
    in = register_module("in", torch::nn::Linear(6, 8));
    out = register_module("out", torch::nn::Linear(8, 2));
    to(torch::kFloat64);
    const torch::NoGradGuard without_gradients;
    for (auto& item : named_parameters())
      item.value().copy_(torch::linspace(-0.5, 0.5, item.value().numel()).view_as(item.value()).sin());
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) {
    return (out->forward(torch::tanh(in->forward(x))) - y).square().mean();
  }
};

using Optimizer = std::function<std::shared_ptr<torch::optim::Optimizer>(const std::vector<at::Tensor>&)>;

template <class OptimizerPtr>
auto train_step(std::shared_ptr<RankedModel> model, OptimizerPtr optimizer) {
  return [model, optimizer](const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor loss = model->loss(x, y);
    loss.backward();
    optimizer->step();
    optimizer->zero_grad();
    return loss.detach();
  };
}

at::Tensor rows_at(int step, int64_t width) {
  return torch::arange(kRows * width, torch::kFloat64).view({kRows, width}).mul(0.1 * (step + 1)).cos();
}

Config config_of_ranks(Ranks& ranks, const std::vector<std::shared_ptr<Ranks>>& all) {
  Config config;
  Parallel parallel{.axes = {{"dp_shard", -1}}};
  parallel.ranks = all[static_cast<size_t>(ranks.rank())];
  config.parallel = parallel;
  return config;
}

void expect_step_of_one(const Optimizer& make) {
  const auto alone = std::make_shared<RankedModel>();
  const auto its = make(alone->parameters());
  const auto eager = train_step(alone, its);
  std::vector<double> wanted;
  for (int s = 0; s < kSteps; ++s) wanted.push_back(eager(rows_at(s, 6), rows_at(s, 2)).item<double>());
  const auto all = Ranks::threads(2);
  on_ranks(all, [&](Ranks& ranks) {
    const auto model = std::make_shared<RankedModel>();
    const auto optimizer = make(model->parameters());
    auto step = accelerate(train_step(model, optimizer), {model}, {optimizer}, config_of_ranks(ranks, all));
    const auto mine = [&](const at::Tensor& rows) { return rows.chunk(2)[static_cast<size_t>(ranks.rank())]; };
    for (int s = 0; s < kSteps; ++s)
      EXPECT_NEAR(step(mine(rows_at(s, 6)), mine(rows_at(s, 2))).template item<double>(),
                  wanted[static_cast<size_t>(s)], 1e-12);
    EXPECT_EQ(step.stats().replays, static_cast<uint64_t>(kSteps));
    EXPECT_TRUE(is_virtual(model->in->weight));
  });
}

TEST(RankStep, IsTheStepOfOneRankWithPyTorchsOptimizers) {
  expect_step_of_one([](const std::vector<at::Tensor>& parameters) {
    return std::make_shared<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-2));
  });
  expect_step_of_one([](const std::vector<at::Tensor>& parameters) {
    return std::make_shared<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
  });
}

// Cut into stages, and in time: what a stage has lies on its ranks alone.
TEST(RankStep, IsTheStepOfOneRankAsAPipeline) {
  const auto alone = std::make_shared<RankedModel>();
  const auto its = std::make_shared<torch::optim::AdamW>(alone->parameters(), torch::optim::AdamWOptions(1e-2));
  const auto eager = train_step(alone, its);
  std::vector<double> wanted;
  for (int s = 0; s < kSteps; ++s) wanted.push_back(eager(rows_at(s, 6), rows_at(s, 2)).item<double>());
  struct Case {
    std::vector<MeshAxis> axes;
    std::vector<std::string> stages;
    std::string order;
    int64_t micro_batches = 2;
  };
  for (const Case& one :
       {Case{{{"pp", 2}}, {"in", "out"}, "1f1b", 4}, Case{{{"pp", 2}}, {"in", "out"}, "zb-h1"},
        Case{{{"pp", 2}, {"dp_shard", 2}}, {"in", "out"}, "gpipe"}, Case{{{"dp_replicate", 2}}, {}, "1f1b"}}) {
    const int64_t ranks_of_all = make_mesh(one.axes).ranks();
    SCOPED_TRACE(str("{}, {}", to_text(make_mesh(one.axes)), one.order));
    const bool has_stages = !one.stages.empty();
    const int64_t of_stage = ranks_of_all / (has_stages ? 2 : 1);
    const auto all = Ranks::threads(ranks_of_all);
    on_ranks(all, [&](Ranks& ranks) {
      const auto model = std::make_shared<RankedModel>();
      const auto optimizer =
          std::make_shared<torch::optim::AdamW>(model->parameters(), torch::optim::AdamWOptions(1e-2));
      Config config = config_of_ranks(ranks, all);
      config.parallel->axes = one.axes;
      config.parallel->stages = one.stages;
      config.parallel->order = one.order;
      config.parallel->micro_batches = one.micro_batches;
      auto step = accelerate(train_step(model, optimizer), {model}, {optimizer}, config);
      const auto mine = [&](const at::Tensor& rows) {
        return rows.chunk(of_stage)[static_cast<size_t>(ranks.rank() % of_stage)];
      };
      for (int s = 0; s < kSteps; ++s)
        EXPECT_NEAR(step(mine(rows_at(s, 6)), mine(rows_at(s, 2))).template item<double>(),
                    wanted[static_cast<size_t>(s)], 1e-12);
      EXPECT_EQ(step.stats().replays, static_cast<uint64_t>(kSteps));
      EXPECT_TRUE(step.stats().warnings.empty());
      if (!has_stages) return;
      const bool is_first = ranks.rank() < of_stage;
      EXPECT_TRUE(is_virtual(is_first ? model->out->weight : model->in->weight)) << "the other stage's";
      EXPECT_EQ(is_virtual(is_first ? model->in->weight : model->out->weight), of_stage > 1);
    });
  }
}

TEST(RankStep, MicroBatchesTakeRowsThatDivide) {
  const auto all = Ranks::threads(2);
  on_ranks(all, [&](Ranks& ranks) {
    const auto model = std::make_shared<RankedModel>();
    const auto optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), 0.1);
    Config config = config_of_ranks(ranks, all);
    config.parallel->micro_batches = 3;
    auto step = accelerate(train_step(model, optimizer), {model}, {optimizer}, config);
    EXPECT_USER_ERROR(step(rows_at(0, 6), rows_at(0, 2)),
                      "micro_batches = 3: batch '0' has 8 rows over 2 ranks, which do not divide");
    EXPECT_FALSE(is_virtual(model->in->weight));
  });
}

// By the loss of all rows: that of one rank's own would go the other way on one of them.
TEST(RankStep, DecidesByWhatOneRankWouldRead) {
  const auto of = [](const std::shared_ptr<RankedModel>& model, const std::shared_ptr<torch::optim::SGD>& optimizer,
                     std::vector<double>& read) {
    return [model, optimizer, &read](const at::Tensor& x, const at::Tensor& y) {
      at::Tensor loss = model->loss(x, y);
      const double before = loss.item<double>();
      if (before > 1.2) loss = 0.1 * loss;
      loss.backward();
      const at::Tensor norm = model->in->weight.grad().square().sum();
      if (norm.isfinite().item<bool>()) optimizer->step();
      optimizer->zero_grad();
      read.push_back(before);
      return loss.detach();
    };
  };
  const auto rows = [](int s) { return std::pair(rows_at(s, 6), (s % 2 == 0 ? 0.5 : 2.0) * rows_at(s, 2)); };
  const auto alone = std::make_shared<RankedModel>();
  std::vector<double> read, wanted;
  const auto eager = of(alone, std::make_shared<torch::optim::SGD>(alone->parameters(), 0.1), read);
  for (int s = 0; s < kSteps; ++s) wanted.push_back(eager(rows(s).first, rows(s).second).item<double>());
  EXPECT_LT(*std::ranges::min_element(read), 1.2);
  EXPECT_GT(*std::ranges::max_element(read), 1.2);
  for (const std::vector<MeshAxis>& axes :
       {std::vector<MeshAxis>{{"dp_shard", 2}}, {{"pp", 2}}, {{"pp", 2}, {"dp_shard", 2}}}) {
    const Mesh mesh = make_mesh(axes);
    SCOPED_TRACE(to_text(mesh));
    const bool has_stages = mesh.find("pp").has_value();
    const int64_t of_stage = mesh.ranks() / (has_stages ? 2 : 1);
    const auto all = Ranks::threads(mesh.ranks());
    on_ranks(all, [&](Ranks& ranks) {
      const auto model = std::make_shared<RankedModel>();
      const auto optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), 0.1);
      std::vector<double> mine_read;
      Config config = config_of_ranks(ranks, all);
      config.parallel->axes = axes;
      if (has_stages) config.parallel->stages = {"in", "out"};
      config.parallel->micro_batches = has_stages ? 2 : 1;
      auto step = accelerate(of(model, optimizer, mine_read), {model}, {optimizer}, config);
      const auto mine = [&](const at::Tensor& tensor) {
        return tensor.chunk(of_stage)[static_cast<size_t>(ranks.rank() % of_stage)];
      };
      for (int s = 0; s < kSteps; ++s)
        EXPECT_NEAR(step(mine(rows(s).first), mine(rows(s).second)).template item<double>(),
                    wanted[static_cast<size_t>(s)], 1e-12);
      EXPECT_EQ(step.stats().plans, 2U);
      EXPECT_GE(step.stats().departures, 2U);
      EXPECT_EQ(step.stats().replays, static_cast<uint64_t>(kSteps));
      EXPECT_NEAR(mine_read.back(), read.back(), 1e-12) << "it ran on the numbers that the plan read";
    });
  }
}

// Micro-batches run before the first number is there.
TEST(RankStep, MicroBatchesCannotGoOnByNumbersOfWhatIsRead) {
  const auto all = Ranks::threads(2);
  on_ranks(all, [&](Ranks& ranks) {
    const auto model = std::make_shared<RankedModel>();
    const auto optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), 0.1);
    Config config = config_of_ranks(ranks, all);
    config.python = PythonMode::kTrace;
    config.parallel->micro_batches = 2;
    auto step = accelerate(
        [&](const at::Tensor& x, const at::Tensor& y) {
          at::Tensor loss = model->loss(x, y);
          const double before = loss.item<double>();
          loss = loss * (1 / before);
          loss.backward();
          optimizer->step();
          optimizer->zero_grad();
          return loss.detach();
        },
        {model}, {optimizer}, config);
    const auto mine = [&](const at::Tensor& tensor) { return tensor.chunk(2)[static_cast<size_t>(ranks.rank())]; };
    const auto run = [&] {
      for (int s = 0; s < 2; ++s) step(mine(rows_at(s, 6)), mine(rows_at(s, 2)));
    };
    EXPECT_USER_ERROR(
        run(),
        "the step's code makes a number of what it has read, and goes on with its batch's rows by that: it "
        "cannot be cut into micro-batches");
  });
}

TEST(RankStep, UnlikeMachinesComputeWithWhatAllHave) {
  const auto all = Ranks::threads(2);
  std::vector<double> losses(2);
  on_ranks(all, [&](Ranks& ranks) {
    const auto model = std::make_shared<RankedModel>();
    const auto optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), 0.1);
    Config config = config_of_ranks(ranks, all);
    config.kernels = std::make_shared<KernelSources>(std::filesystem::path());
    blocked::MicroKernels& own = config.kernels->micro_kernels;
    own.avx512 = ranks.rank() == 0;
    auto step = accelerate(train_step(model, optimizer), {model}, {optimizer}, config);
    losses[static_cast<size_t>(ranks.rank())] = step(rows_at(0, 6), rows_at(0, 2)).item<double>();
    const bool is_told = std::ranges::any_of(step.stats().warnings, [](const std::string& warning) {
      return warning.starts_with("the machines of the ranks differ (rank 0: ");
    });
    EXPECT_EQ(is_told, ranks.rank() == 0) << "the terminal's";
  });
  EXPECT_EQ(losses[0], losses[1]);
}

TEST(RankStep, SendsGradientsAsBfloat16WhereAsked) {
  const auto all = Ranks::threads(2);
  on_ranks(all, [&](Ranks& ranks) {
    std::vector<double> losses;
    for (const char* reduce : {"float32", "bfloat16"}) {
      const auto model = std::make_shared<RankedModel>();
      const auto optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), 0.1);
      Config config = config_of_ranks(ranks, all);
      config.parallel->reduce = parse_reduce(reduce);
      auto step = accelerate(train_step(model, optimizer), {model}, {optimizer}, config);
      for (int s = 0; s < 2; ++s) losses.push_back(step(rows_at(s, 6), rows_at(s, 2)).item<double>());
    }
    EXPECT_EQ(losses[0], losses[2]);
    EXPECT_NE(losses[1], losses[3]) << "gradients were rounded";
    EXPECT_NEAR(losses[1], losses[3], 1e-3 * losses[1]);
  });
  EXPECT_USER_ERROR(parse_reduce("fp8"), "parallel has reduce = \"fp8\"; it is \"float32\" or \"bfloat16\"");
}

TEST(RankStep, RefusesAnOptimizerWhoseFirstStepIsAnother) {
  const auto all = Ranks::threads(2);
  on_ranks(all, [&](Ranks& ranks) {
    const auto model = std::make_shared<RankedModel>();
    const auto optimizer = std::make_shared<torch::optim::SGD>(
        model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.5));
    auto step = accelerate(train_step(model, optimizer), {model}, {optimizer}, config_of_ranks(ranks, all));
    EXPECT_USER_ERROR(step(rows_at(0, 6), rows_at(0, 2)), "SGD cannot begin on ranks");
    EXPECT_FALSE(is_virtual(model->in->weight));
  });
}

TEST(RankStep, RefusesRanksThatAreNotTheMesh) {
  const auto all = Ranks::threads(2);
  on_ranks(all, [&](Ranks& ranks) {
    const auto model = std::make_shared<RankedModel>();
    const auto optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), 0.1);
    Config config = config_of_ranks(ranks, all);
    config.parallel->axes = {{"dp_shard", 2}, {"tp", 2}};
    EXPECT_USER_ERROR(accelerate(train_step(model, optimizer), {model}, {optimizer}, config),
                      "parallel asks for 4 ranks (dp_shard=2,tp=2), and 2 were started");
    config.parallel->axes = {{"pp", 2}};
    EXPECT_USER_ERROR(accelerate(train_step(model, optimizer), {model}, {optimizer}, config),
                      "1 micro-batch for 2 stages in the order \"1f1b\", which needs one a stage");
  });
}

}  // namespace
}  // namespace stepc
