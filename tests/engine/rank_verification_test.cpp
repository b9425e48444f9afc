// Plans of ranks that go wrong on purpose, each on one rank: named, and without effect.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "engine/accelerate.h"
#include "engine/ranks/rank_step.h"
#include "runtime/kernel_sources.h"
#include "tests/comm/rank_threads.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

constexpr int kStepsOfRanks = 4;
constexpr int64_t kRowsOfRanks = 8;

struct Model : torch::nn::Module {
  torch::nn::Linear in{nullptr}, out{nullptr};
  Model() {
    in = register_module("in", torch::nn::Linear(6, 8));
    out = register_module("out", torch::nn::Linear(8, 2));
    to(torch::kFloat64);
    const torch::NoGradGuard without_gradients;
    for (auto& item : named_parameters())
      item.value().copy_(torch::linspace(-0.5, 0.5, item.value().numel()).view_as(item.value()).sin());
  }
};

auto step_of(const std::shared_ptr<Model>& model, const std::shared_ptr<torch::optim::SGD>& optimizer) {
  return [model, optimizer](const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor loss = (model->out->forward(torch::tanh(model->in->forward(x))) - y).square().mean();
    loss.backward();
    optimizer->step();
    optimizer->zero_grad();
    return loss.detach();
  };
}

at::Tensor rows_of_ranks_at(int step, int64_t width) {
  return torch::arange(kRowsOfRanks * width, torch::kFloat64).view({kRowsOfRanks, width}).mul(0.1 * (step + 1)).cos();
}

// The losses of eager, of all rows.
std::vector<double> losses_of_one() {
  const auto model = std::make_shared<Model>();
  const auto step = step_of(model, std::make_shared<torch::optim::SGD>(model->parameters(), 0.1));
  std::vector<double> losses;
  for (int s = 0; s < kStepsOfRanks; ++s)
    losses.push_back(step(rows_of_ranks_at(s, 6), rows_of_ranks_at(s, 2)).item<double>());
  return losses;
}

// Doubles what a generated kernel of the forward pass writes, so many times. The plain graph has no such kernel.
struct Fault {
  std::atomic<int> times = 0;
  void meet(const Instruction& instruction, const at::Tensor& written) {
    const bool is_it = instruction.kind == Instruction::Kind::kGenerated &&
                       instruction.source.phase == Phase::kForward && written.scalar_type() == at::kDouble;
    if (!is_it || times == 0) return;
    --times;
    auto* const elements = static_cast<double*>(written.mutable_data_ptr());
    for (int64_t i = 0; i < written.numel(); ++i) elements[i] *= 2;
  }
};
constexpr int kForEver = 1 << 20;

// Trains on two ranks that are threads; rank 1 has the fault, `before_step` may arm it. What each rank's step counted.
std::vector<Stats> train_on_ranks(const Verify& verify, Fault& fault, std::vector<std::vector<double>>& losses,
                                  const std::function<void(Ranks&, int step)>& before_step = {}) {
  const auto all = Ranks::threads(2);
  std::vector<Stats> stats(2);
  losses.resize(2);
  on_ranks(all, [&](Ranks& ranks) {
    const auto rank = static_cast<size_t>(ranks.rank());
    const auto model = std::make_shared<Model>();
    const auto optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), 0.1);
    Config config;
    config.verify = verify;
    Parallel parallel{.axes = {{"dp_shard", -1}}};
    parallel.ranks = all[rank];
    config.parallel = parallel;
    config.kernels = std::make_shared<KernelSources>(std::filesystem::path());
    if (rank == 1)
      config.kernels->on_written = [&](const Instruction& made, const at::Tensor& written) {
        fault.meet(made, written);
      };
    auto step = accelerate(step_of(model, optimizer), {model}, {optimizer}, config);
    const auto mine = [&](const at::Tensor& rows) { return rows.chunk(2)[rank]; };
    for (int s = 0; s < kStepsOfRanks; ++s) {
      if (before_step) before_step(ranks, s);
      losses[rank].push_back(step(mine(rows_of_ranks_at(s, 6)), mine(rows_of_ranks_at(s, 2))).template item<double>());
    }
    stats[rank] = step.stats();
  });
  return stats;
}

void expect_losses_of_one(const std::vector<std::vector<double>>& losses) {
  const std::vector<double> wanted = losses_of_one();
  for (const std::vector<double>& of_rank : losses)
    for (size_t s = 0; s < wanted.size(); ++s) EXPECT_NEAR(of_rank[s], wanted[s], 1e-12) << "step " << s;
}

TEST(RankVerification, ARightPlanIsComparedOnce) {
  Fault none;
  std::vector<std::vector<double>> losses;
  for (const Stats& stats : train_on_ranks(Verify::first(), none, losses)) {
    EXPECT_EQ(stats.verifications, 1U);
    EXPECT_EQ(stats.plain_verifications, 1U);
    EXPECT_EQ(stats.replays, static_cast<uint64_t>(kStepsOfRanks));
    EXPECT_TRUE(stats.warnings.empty()) << stats.warnings[0];
    EXPECT_TRUE(stats.verified_with.starts_with("with the plain graph of one rank, one ATen call a node, in "))
        << stats.verified_with;
  }
  expect_losses_of_one(losses);
  losses.clear();
  for (const Stats& stats : train_on_ranks(Verify::every(2), none, losses)) EXPECT_EQ(stats.verifications, 2U);
  losses.clear();
  for (const Stats& stats : train_on_ranks(Verify::off(), none, losses)) EXPECT_EQ(stats.verifications, 0U);
}

TEST(RankVerification, AWrongPlanOnOneRankIsNamedAndChangesNothing) {
  Fault fault{kForEver};
  std::vector<std::vector<double>> losses;
  const std::vector<Stats> stats = train_on_ranks(Verify::first(), fault, losses);
  for (const Stats& of_rank : stats) {
    EXPECT_EQ(of_rank.verifications, 1U);
    EXPECT_EQ(of_rank.replays, static_cast<uint64_t>(kStepsOfRanks)) << "of the plain graph";
    ASSERT_EQ(of_rank.warnings.size(), 1U);
    EXPECT_EQ(of_rank.warnings[0], stats[0].warnings[0]);
  }
  const std::string& warning = stats[0].warnings[0];
  EXPECT_TRUE(warning.starts_with("a replay differs from the plain graph in returned value 0 by ")) << warning;
  EXPECT_NE(warning.find(" on rank 0, first in "), std::string::npos) << "its loss is the mean of all: " << warning;
  EXPECT_NE(warning.find("tanh"), std::string::npos) << warning;
  EXPECT_NE(warning.find("(forward of '') on rank 1: all ranks run the plain graph from now on"), std::string::npos)
      << warning;
  expect_losses_of_one(losses);
}

TEST(RankVerification, AFaultThatComesLaterIsFound) {
  Fault fault;
  std::vector<std::vector<double>> losses;
  const std::vector<Stats> stats = train_on_ranks(Verify::every(2), fault, losses, [&](Ranks& ranks, int step) {
    if (step == 2 && ranks.rank() == 1) fault.times = kForEver;
  });
  for (const Stats& of_rank : stats) {
    EXPECT_EQ(of_rank.verifications, 2U);
    ASSERT_EQ(of_rank.warnings.size(), 1U);
    EXPECT_NE(of_rank.warnings[0].find("on rank 1"), std::string::npos) << of_rank.warnings[0];
  }
  expect_losses_of_one(losses);
}

// No plan is wrong, and no result of that machine can be trusted.
TEST(RankVerification, AMachineThatErrsOnceEndsAllRanks) {
  Fault fault{1};
  std::vector<std::vector<double>> losses;
  EXPECT_USER_ERROR(
      train_on_ranks(Verify::first(), fault, losses),
      "and the same replay a moment later does not: a machine of this run computes wrong results at times");
  EXPECT_TRUE(losses[0].empty() && losses[1].empty());
}

TEST(RankVerification, RanksCompareAlike) {
  const auto all = Ranks::threads(2);
  on_ranks(all, [&](Ranks& ranks) {
    const auto model = std::make_shared<Model>();
    const auto optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), 0.1);
    Config config;
    Parallel parallel{.axes = {{"dp_shard", -1}}};
    parallel.ranks = all[static_cast<size_t>(ranks.rank())];
    config.parallel = parallel;
    config.verify = ranks.rank() == 0 ? Verify::first() : Verify::every(10);
    auto step = accelerate(step_of(model, optimizer), {model}, {optimizer}, config);
    EXPECT_USER_ERROR(step(rows_of_ranks_at(0, 6), rows_of_ranks_at(0, 2)),
                      "rank 1 has verify \"every:10\", and rank 0 \"first\"");
  });
}

}  // namespace
}  // namespace stepc
