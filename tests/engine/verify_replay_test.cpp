// Plans that are wrong, each in one place: refused before they count, whatever eager's own errors are.
#include <gtest/gtest.h>

#include <torch/nn/functional/embedding.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "cost/host_features.h"
#include "engine/stepc.h"
#include "runtime/kernel_sources.h"
#include "tests/engine/log_lines.h"

namespace stepc {
namespace {

constexpr int kReplayedSteps = 7;

// The ends of a language model, with many tokens a row; and its plan where the machine's f32 matmuls are these.
struct Trained {
  Stats stats;
  std::string log;
  double apart = 0;  // from a twin that eager trained
};
Trained train(at::ScalarType type, const std::shared_ptr<KernelSources>& kernels) {
  const auto make = [&] {
    torch::manual_seed(3);
    torch::nn::Sequential model(torch::nn::Embedding(16, 32), torch::nn::Linear(32, 16));
    model->to(type);
    return model;
  };
  torch::nn::Sequential a = make(), b = make();
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
  torch::optim::SGD optimizer_a(a->parameters(), options), optimizer_b(b->parameters(), options);
  const auto train_step = [](torch::nn::Sequential& model, torch::optim::SGD& optimizer, const at::Tensor& ids) {
    at::Tensor loss = model->forward(ids).to(at::kFloat).pow(2).mean();
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    return loss;
  };
  Config config;
  config.kernels = kernels;
  config.memory_budget = parse_memory_budget("1GiB");  // room for our matmuls' scratch: they are what is to be wrong
  const test::LogLines lines;
  auto step =
      accelerate([&](const at::Tensor& ids) { return train_step(b, optimizer_b, ids); }, {b}, {optimizer_b}, config);
  for (int i = 0; i < kReplayedSteps; ++i) {
    const at::Tensor ids = torch::randint(16, {64, 256}, at::kLong);
    train_step(a, optimizer_a, ids);
    step(ids);
  }
  Trained trained{step.stats(), lines.text()};
  for (size_t p = 0; p < a->parameters().size(); ++p)
    trained.apart = std::max(trained.apart, (a->parameters()[p] - b->parameters()[p]).abs().max().item<double>());
  return trained;
}

// Matmuls of blocks that forget what was summed before.
template <class T>
void forgets(const blocked::BlockSize& size, const T*, int64_t, const T*, int64_t, float* c, int64_t ldc, bool) {
  for (int64_t i = 0; i < size.rows; ++i) std::fill_n(c + i * ldc, size.columns, 0.5F);
}
std::shared_ptr<KernelSources> wrong_kernels() {
  auto kernels = std::make_shared<KernelSources>(std::filesystem::path());
  kernels->micro_kernels.f32 = forgets<float>;
  kernels->micro_kernels.bf16 = forgets<blocked::Bf16>;
  kernels->micro_kernels.intel = false;
  return kernels;
}

TEST(VerifyReplay, AWrongKernelIsFoundByThePlainGraph) {
  if (!host_features().avx512) GTEST_SKIP() << "no blocked matmuls here that could be wrong";
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Trained trained = train(type, wrong_kernels());
    EXPECT_EQ(trained.stats.replays, 0U) << trained.log;
    EXPECT_EQ(trained.stats.plain_verifications, 1U);
    EXPECT_EQ(trained.stats.eager_verifications, 0U);
    ASSERT_EQ(trained.stats.warnings.size(), 1U) << trained.log;
    EXPECT_NE(trained.stats.warnings[0].find("a replay differs from the plain graph in "), std::string::npos)
        << trained.stats.warnings[0];
    EXPECT_EQ(trained.apart, 0) << "every step was eager's";
  }
}

TEST(VerifyReplay, Float64DecidesWhereEagerIsTheWorseOne) {
  const auto kernels = std::make_shared<KernelSources>(std::filesystem::path());
  const Trained right = train(at::kFloat, kernels);
  EXPECT_TRUE(right.stats.warnings.empty()) << right.log;
  EXPECT_EQ(right.stats.float64_verifications, 0U);
  EXPECT_EQ(right.stats.verifications, 1U);
  const Trained narrow = train(at::kBFloat16, kernels);
  EXPECT_TRUE(narrow.stats.warnings.empty()) << narrow.log;
  EXPECT_EQ(narrow.stats.float64_verifications, 1U);
  EXPECT_EQ(narrow.stats.verifications, 2U);
  EXPECT_GT(narrow.stats.replays, 0U);
  EXPECT_NE(narrow.stats.eager_errs.find("aten::embedding_dense_backward is "), std::string::npos)
      << narrow.stats.eager_errs;
}

}  // namespace
}  // namespace stepc
