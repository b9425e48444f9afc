// The plain Graph within a limit: activations are recomputed where neither it nor the fused Graph's nodes fit.
#include <gtest/gtest.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "engine/plan/compile.h"
#include "engine/stepc.h"
#include "optim/adamw.h"

namespace stepc {
namespace {

constexpr int64_t kRows = 4096, kPlainWidth = 32;

// A step whose memory is mostly activations.
Trace deep_step() {
  torch::nn::Sequential model;
  for (int layer = 0; layer < 12; ++layer) {
    model->push_back(torch::nn::Linear(kPlainWidth, kPlainWidth));
    model->push_back(torch::nn::GELU());
  }
  optim::NamedTensors named;
  for (const auto& item : model->named_parameters()) named.emplace_back(item.key(), item.value());
  optim::AdamW optimizer(named, optim::AdamWOptions());
  const auto train = [&](const at::Tensor& x) {
    at::Tensor loss = model->forward(x).square().mean();
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    return loss;
  };
  VirtualPlan planned = plan(train, {model}, {optimizer}, torch::zeros({kRows, kPlainWidth}));
  EXPECT_EQ(planned.obstacle, "");
  return std::move(planned.trace);
}

TEST(CompilePlain, RecomputesWithinALimit) {
  const Trace trace = deep_step();
  KernelSources kernels({});
  const CompileOptions options;
  const Compiled roomy = compile_plain(trace, kernels, options);
  const uint64_t all = roomy.executor->schedule().peak_bytes();
  const PlannedGraph fused = plan_fast(trace, kernels, options);
  const PlainLimit limit{all / 2, fused.graph};
  ASSERT_GT(compile_nodes(fused.graph, trace, kernels, options, nullptr).executor->schedule().peak_bytes(), limit.bytes)
      << "nothing has to be recomputed";
  const Compiled tight = compile_plain(trace, kernels, options, &limit);
  EXPECT_LE(tight.executor->schedule().peak_bytes(), limit.bytes);
  EXPECT_GT(tight.executor->schedule().instructions.size(), roomy.executor->schedule().instructions.size());
}

TEST(CompilePlain, IsTheSmallestIfNothingFits) {
  const Trace trace = deep_step();
  KernelSources kernels({});
  const CompileOptions options;
  const uint64_t all = compile_plain(trace, kernels, options).executor->schedule().peak_bytes();
  const PlannedGraph fused = plan_fast(trace, kernels, options);
  const PlainLimit limit{1, fused.graph};
  const uint64_t least = compile_plain(trace, kernels, options, &limit).executor->schedule().peak_bytes();
  EXPECT_GT(least, limit.bytes);
  EXPECT_LT(least, all);
}

}  // namespace
}  // namespace stepc
