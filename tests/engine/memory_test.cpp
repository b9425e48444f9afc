// In a replayed step no tensor memory is asked of the system, workspaces inside kernels included, except for what
// escapes: with bf16 matmul, convolution and attention, several OpenMP workers and another thread allocating meanwhile.
#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "tests/engine/twins.h"

namespace stepc {
namespace {

// Convolution, batch norm, attention and matmul in one small network.
struct MixedImpl : torch::nn::Module {
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear qkv{nullptr};
  torch::nn::Linear out{nullptr};
  MixedImpl() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 64, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(64));
    qkv = register_module("qkv", torch::nn::Linear(64, 192));
    out = register_module("out", torch::nn::Linear(64, 10));
  }
  at::Tensor forward(const at::Tensor& x) {  // (batch, 3, 16, 16) -> (batch, 256, 10)
    at::Tensor h = torch::relu(norm(conv(x))).flatten(2).transpose(1, 2);
    const auto parts = qkv(h).chunk(3, -1);
    const auto heads = [](const at::Tensor& t) { return t.unflatten(-1, {4, 16}).transpose(1, 2); };
    h = at::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]), {}, 0.0, true);
    return out(h.transpose(1, 2).flatten(2));
  }
};
TORCH_MODULE(Mixed);
using MixedTwins = test::TwinsOf<Mixed>;

// Restores the thread count that a test changed.
class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }

 private:
  int before_;
};

// A thread that keeps allocating and running parallel kernels of its own.
class Neighbour {
 public:
  Neighbour()
      : thread_([this] {
          while (!stop_) {
            const at::Tensor a = at::ones({64, 512});
            sum_ = sum_ + at::matmul(a, a.t()).sum().item<double>();
            ++rounds_;
          }
        }) {}
  ~Neighbour() {
    stop_ = true;
    thread_.join();
  }
  int rounds() const { return rounds_; }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<int> rounds_{0};
  double sum_ = 0;
  std::thread thread_;
};

at::Tensor images(int i, at::ScalarType dtype) {
  torch::manual_seed(50 + i);
  return torch::randn({4, 3, 16, 16}).to(dtype);
}

class MixedStep : public ::testing::TestWithParam<std::tuple<int, at::ScalarType>> {};

TEST_P(MixedStep, AsksTheSystemForNothing) {
  const auto [threads, dtype] = GetParam();
  const Threads count(threads);
  MixedTwins twins([] { return Mixed(); }, {}, dtype);
  {
    const Neighbour neighbour;
    twins.run(10, [dtype = dtype](int i) { return images(i, dtype); });
    EXPECT_GT(neighbour.rounds(), 0);
  }
  EXPECT_GE(twins.stats().replays, 6U);
  EXPECT_GT(twins.stats().served_allocations, 50U);
  EXPECT_EQ(twins.stats().unplanned_allocations, 0U) << twins.report();
  EXPECT_EQ(twins.stats().planned_peak_bytes, twins.stats().measured_peak_bytes) << twins.report();
}

INSTANTIATE_TEST_SUITE_P(Threads, MixedStep,
                         ::testing::Combine(::testing::Values(1, 2, 4), ::testing::Values(at::kFloat, at::kBFloat16)),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) + c10::toString(std::get<1>(info.param));
                         });

TEST(Memory, PlansShareOneArena) {
  const auto make = [] {
    return torch::nn::Sequential(torch::nn::Linear(64, 64), torch::nn::ReLU(), torch::nn::Linear(64, 8));
  };
  test::Twins twins(make);
  const auto small = [](int) { return torch::ones({8, 64}); };
  const auto large = [](int) { return torch::ones({64, 64}); };
  twins.run(5, large);
  const uint64_t arena = twins.stats().arena_bytes;
  twins.run(5, small);
  EXPECT_EQ(twins.stats().plans, 2U);
  EXPECT_LT(twins.stats().arena_bytes, arena);
  twins.run(3, large);  // still there, not recorded again
  EXPECT_EQ(twins.stats().plans, 2U);
  EXPECT_EQ(twins.stats().unplanned_allocations, 0U);
}

TEST(Memory, TwoThreadsTrainTwoModelsAtOnce) {
  const auto make = [] {
    return torch::nn::Sequential(torch::nn::Linear(32, 32), torch::nn::Tanh(), torch::nn::Linear(32, 4));
  };
  test::Twins first(make);
  test::Twins second(make);
  const auto train = [](test::Twins& twins) {
    twins.do_not_seed();
    twins.run(30, [](int i) {
      return torch::arange(8 * 32).reshape({8, 32}).to(at::kFloat).mul(0.01 * (i + 1)).sin();
    });
  };
  std::thread other([&] { train(second); });
  train(first);
  other.join();
  for (const test::Twins* twins : {&first, &second}) {
    EXPECT_GE(twins->stats().replays, 20U);
    EXPECT_EQ(twins->stats().unplanned_allocations, 0U) << twins->report();
  }
}

}  // namespace
}  // namespace stepc
