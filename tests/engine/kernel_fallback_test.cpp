// What a machine, a directory or the code generator refuses: the step is right all the same, and one line says what it
// does without.
#include <algorithm>
#include <fstream>
#include <set>
#include <stdexcept>

#include <gtest/gtest.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/sgd.h>

#include "engine/stepc.h"
#include "runtime/kernel_sources.h"
#include "tests/engine/log_lines.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

namespace fs = std::filesystem;

constexpr int kSteps = 6;

torch::nn::Sequential make(at::ScalarType type) {
  torch::manual_seed(3);
  torch::nn::Sequential model(torch::nn::Linear(16, 64), torch::nn::LayerNorm(torch::nn::LayerNormOptions({64})),
                              torch::nn::GELU(), torch::nn::Linear(64, 64), torch::nn::Tanh(),
                              torch::nn::Linear(64, 8));
  model->to(type);
  return model;
}

at::Tensor loss_of(torch::nn::Sequential& model, const at::Tensor& x) {
  return torch::log_softmax(model->forward(x).to(at::kFloat), -1).pow(2).mean();
}

// What kSteps of fast mode came to, beside eager.
struct Trained {
  Stats stats;
  std::vector<std::string> matmul_kernels;  // what ran them
  std::string log;
  int warnings = 0;
  uint64_t unplanned_later = 0;  // after the first two runs of the plan
};

Trained train(Config config, at::ScalarType type = at::kFloat) {
  config.mode = Mode::kFast;
  const test::LogLines lines;
  torch::nn::Sequential a = make(type);
  torch::nn::Sequential b = make(type);
  torch::optim::SGD optimizer_a(a->parameters(), 0.1);
  torch::optim::SGD optimizer_b(b->parameters(), 0.1);
  const auto train_step = [](torch::nn::Sequential& model, torch::optim::SGD& optimizer, const at::Tensor& x) {
    at::Tensor loss = loss_of(model, x);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    return loss;
  };
  auto step =
      accelerate([&](const at::Tensor& x) { return train_step(b, optimizer_b, x); }, {b}, {optimizer_b}, config);
  Trained trained;
  const double tolerance = type == at::kFloat ? 1e-4 : 5e-2;
  for (int i = 0; i < kSteps; ++i) {
    const at::Tensor x = torch::randn({32, 16}).to(type);
    if (i == kSteps - 1) step.start_profile();
    const uint64_t unplanned = step.stats().unplanned_allocations;
    const double eager = train_step(a, optimizer_a, x).item<double>();
    EXPECT_NEAR(step(x).item<double>(), eager, tolerance * (1 + std::abs(eager))) << i;
    if (i >= 4) trained.unplanned_later += step.stats().unplanned_allocations - unplanned;
  }
  for (size_t p = 0; p < a->parameters().size(); ++p) {
    const at::Tensor right = a->parameters()[p].to(at::kDouble);
    const double error = (b->parameters()[p].to(at::kDouble) - right).norm().item<double>();
    EXPECT_LE(error, tolerance * (1 + right.norm().item<double>())) << p;
  }
  const std::optional<Profile> profile = step.finish_profile();
  EXPECT_TRUE(profile.has_value()) << lines.text();
  for (const ProfiledInstruction& one : profile.value_or(Profile()).instructions)
    if (one.name == "matmul") trained.matmul_kernels.push_back(one.kernel);
  trained.stats = step.stats();
  trained.log = lines.text();
  trained.warnings = lines.count("[warning]");
  EXPECT_EQ(trained.stats.replays, 3U) << trained.log;
  EXPECT_EQ(trained.unplanned_later, 0U) << trained.log;
  return trained;
}

std::shared_ptr<KernelSources> sources(const fs::path& directory = {}) {
  return std::make_shared<KernelSources>(directory);
}

TEST(KernelFallback, NothingIsSaidWhereNothingIsWrong) {
  const Trained trained = train({});
  EXPECT_GT(trained.stats.kernels, 3U);
  EXPECT_EQ(trained.warnings, 0) << trained.log;
}

// Each program in turn, and each alone, so that every kind of group has run as ATen calls between kernels.
TEST(KernelFallback, AGroupWithoutAKernelRunsAsAtenCalls) {
  std::set<std::string> programs;
  Config counting;
  counting.kernels = sources();
  counting.kernels->before_compile = [&](const LoopProgram& program) { programs.insert(to_text(program)); };
  const uint64_t all = train(counting).stats.kernels;
  EXPECT_GT(programs.size(), 3U);
  for (const std::string& refused : programs) {
    Config config;
    config.kernels = sources();
    config.kernels->before_compile = [&](const LoopProgram& program) {
      if (to_text(program) == refused) throw std::runtime_error("a generator that fails");
    };
    const Trained trained = train(config);
    EXPECT_LT(trained.stats.kernels, all);
    EXPECT_EQ(trained.warnings, 1) << trained.log;
    EXPECT_NE(trained.log.find("of the step's kernels could not be generated and run as ATen calls; the first: group"),
              std::string::npos)
        << trained.log;
    EXPECT_NE(trained.log.find("a generator that fails"), std::string::npos) << trained.log;
  }
}

TEST(KernelFallback, AStepWithoutAnyKernelRunsAsAtenCalls) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    Config config;
    config.kernels = sources();
    config.kernels->before_compile = [](const LoopProgram&) { throw std::runtime_error("no generator"); };
    const Trained trained = train(config, type);
    EXPECT_EQ(trained.stats.kernels, 0U);
    EXPECT_GT(trained.stats.graph_nodes, 0U);
    EXPECT_EQ(trained.warnings, 1) << trained.log;
  }
}

TEST(KernelFallback, ADirectoryThatCannotBeUsedIsDoneWithout) {
  const TempDir directory;
  std::ofstream(directory / "file") << "x";
  for (const fs::path& unusable : {directory / "file", directory / "file" / "below", fs::path("/proc/self")}) {
    Config config;
    config.kernel_directory = unusable;
    const Trained trained = train(config);
    EXPECT_GT(trained.stats.kernels, 3U);
    EXPECT_EQ(trained.warnings, 1) << trained.log;
    EXPECT_NE(trained.log.find("generated kernels are not kept for the next run: cannot "), std::string::npos)
        << trained.log;
  }
}

TEST(KernelFallback, KeptKernelsThatAreDamagedAreMadeAgain) {
  const TempDir directory;
  Config config;
  config.kernel_directory = directory.path();
  EXPECT_EQ(train(config).warnings, 0);
  EXPECT_EQ(train(config).warnings, 0) << "read back";
  size_t damaged = 0;
  for (const auto& entry : fs::directory_iterator(directory.path())) {
    std::ofstream(entry.path(), std::ios::binary) << std::string(100 * damaged, '\7');
    ++damaged;
  }
  const Trained again = train(config);
  EXPECT_EQ(again.warnings, 1) << again.log;
  EXPECT_NE(again.log.find("some kept kernels were damaged and have been made again"), std::string::npos) << again.log;
  EXPECT_EQ(train(config).warnings, 0) << "whole again";
}

// What the probe finds where LibTorch has no micro-kernel, or a wrong one.
TEST(KernelFallback, WithoutMicroKernelsMatmulsAreAtens) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    Config config;
    config.kernels = sources();
    config.kernels->micro_kernels = {};
    const Trained trained = train(config, type);
    EXPECT_GE(trained.matmul_kernels.size(), 8U);
    EXPECT_TRUE(
        std::ranges::all_of(trained.matmul_kernels, [](const std::string& kernel) { return kernel == "ATen"; }));
    EXPECT_EQ(trained.warnings, 0) << trained.log;
  }
}

TEST(KernelFallback, StepsMayShareTheirKernels) {
  Config config;
  config.kernels = sources();
  train(config);
  const CompilerStatistics first = config.kernels->compiler.statistics();
  train(config);
  const CompilerStatistics both = config.kernels->compiler.statistics();
  EXPECT_GT(first.compiled, 0U);
  EXPECT_EQ(both.compiled, first.compiled);
  EXPECT_GT(both.in_memory, first.in_memory);
}

}  // namespace
}  // namespace stepc
