#include "blocked/linear_cross_entropy.h"

#include <limits>

#include <gtest/gtest.h>

#include "base/check.h"
#include "tests/blocked/reference.h"

namespace stepc::blocked {
namespace {

struct LossCase {
  LinearCrossEntropy call;
  at::Tensor hidden, weight, targets;
  at::Tensor gradient, sum_gradient;  // of each token
};

struct LossAnswer {
  at::Tensor loss, logp_sum, hidden, weight;
};

LossCase make_case(Number number, int64_t tokens, int64_t width, int64_t classes, int64_t chunk) {
  LossCase c;
  c.hidden = random_tensor({tokens, width}, number);
  c.weight = random_tensor({classes, width}, number) / std::sqrt(static_cast<double>(width)) * 2;
  c.targets = at::randint(0, classes, {tokens}, at::kLong);
  c.gradient = at::rand({tokens}) + 0.5;
  c.call.type = number;
  c.call.tokens = tokens;
  c.call.width = width;
  c.call.classes = classes;
  c.call.hidden = c.hidden.data_ptr();
  c.call.hidden_stride = width;
  c.call.weight = c.weight.data_ptr();
  c.call.weight_stride = width;
  c.call.targets = c.targets.data_ptr<int64_t>();
  c.call.gradient = c.gradient.data_ptr<float>();
  c.call.weight_gradient_type = number;
  c.call.chunk = chunk;
  return c;
}

// By autograd, in `type`: float64 for the reference, the case's own for what eager makes of it.
LossAnswer eager(const LossCase& c, at::ScalarType type) {
  const at::Tensor hidden = c.hidden.to(type).detach().requires_grad_();
  const at::Tensor weight = c.weight.to(type).detach().requires_grad_();
  const at::Tensor logp = at::log_softmax(at::matmul(hidden, weight.t()), 1);
  const at::Tensor loss = at::nll_loss(logp, c.targets, {}, at::Reduction::None, c.call.ignore_index);
  const at::Tensor sums = logp.sum(1);
  at::Tensor goal = (loss * c.gradient.to(type)).sum();
  if (c.sum_gradient.defined()) goal = goal + (sums * c.sum_gradient.to(type)).sum();
  goal.backward();
  return {loss.detach(), sums.detach(), hidden.grad(), weight.grad()};
}

LossAnswer ours(const LossCase& c, const MicroKernels& kernels, int threads = 2) {
  LossAnswer answer{at::full({c.call.tokens}, 7.0), at::full({c.call.tokens}, 7.0), at::full_like(c.hidden, 7),
                    at::full(c.weight.sizes(), 7.0, aten_type(c.call.weight_gradient_type))};
  LinearCrossEntropy call = c.call;
  call.loss = answer.loss.data_ptr<float>();
  call.logp_sum = answer.logp_sum.data_ptr<float>();
  call.hidden_gradient = answer.hidden.data_ptr();
  call.hidden_gradient_stride = c.call.width;
  call.weight_gradient = answer.weight.data_ptr();
  const at::Tensor memory = dirty_memory(workspace_bytes(call, threads));
  linear_cross_entropy(call, kernels, threads, memory.data_ptr());
  return answer;
}

void expect_near(const LossAnswer& got, const LossCase& c, const std::string& what) {
  const LossAnswer exact = eager(c, at::kDouble), theirs = eager(c, aten_type(c.call.type));
  const double floor = c.call.type == Number::kF32 ? 2e-6 : 3e-3;
  const auto expect_one = [&](const at::Tensor& mine, const at::Tensor& other, const at::Tensor& right,
                              const char* name) {
    if (right.abs().max().item<double>() < 1e-9) {  // nothing to learn from one class: no relative error
      ASSERT_LE(mine.abs().max().item<double>(), 1e-4) << what << ", " << name;
    } else {
      ASSERT_LE(distance(mine, right), std::max(2 * distance(other, right), floor)) << what << ", " << name;
    }
  };
  expect_one(got.loss, theirs.loss, exact.loss, "loss");
  expect_one(got.logp_sum, theirs.logp_sum, exact.logp_sum, "sum of log-probabilities");
  expect_one(got.hidden, theirs.hidden, exact.hidden, "gradient of hidden");
  expect_one(got.weight, theirs.weight, exact.weight, "gradient of weight");
}

TEST(LinearCrossEntropy, EqualsTheReferenceOverRandomCalls) {
  const OneThread one;
  at::manual_seed(1);
  Random random(1);
  const std::vector<MicroKernels> all = machines();
  for (int round = 0; round < 60; ++round) {
    const Number number = random.coin() ? Number::kBf16 : Number::kF32;
    LossCase c = make_case(number, random.one_of<int64_t>({1, 2, 31, 64, 65, 130, random.between(1, 200)}),
                           random.one_of<int64_t>({1, 16, 33, 64, 96}),
                           random.one_of<int64_t>({1, 2, 100, 128, 129, 500, random.between(1, 700)}),
                           random.one_of<int64_t>({1, 32, 50, 64, 512}));
    if (random.coin()) {
      c.sum_gradient = at::randn({c.call.tokens}) * 0.1 / static_cast<double>(c.call.classes);
      c.call.sum_gradient = c.sum_gradient.data_ptr<float>();
    }
    if (random.coin()) c.call.weight_gradient_type = Number::kF32;
    if (random.coin() && c.call.tokens > 1) {
      c.targets.slice(0, 1, c.call.tokens, 3).fill_(-100);
    }
    const MicroKernels& kernels = all[static_cast<size_t>(round) % all.size()];
    expect_near(ours(c, kernels, static_cast<int>(random.between(1, 3))), c,
                str("round {}: {} tokens, {} wide, {} classes, chunk {}", round, c.call.tokens, c.call.width,
                    c.call.classes, c.call.chunk));
  }
}

TEST(LinearCrossEntropy, SlabsOfClassesAndChunksOfTokensRepeatTheirBits) {
  at::manual_seed(2);
  for (const Number number : {Number::kF32, Number::kBf16}) {
    const LossCase c = make_case(number, 150, 64, 9000, 64);
    const LossAnswer first = ours(c, probe_micro_kernels(), 1);
    expect_near(first, c, "9000 classes");
    for (const int threads : {2, 3, 2}) {
      const LossAnswer again = ours(c, probe_micro_kernels(), threads);
      EXPECT_EQ(bytes_of_tensor(again.loss), bytes_of_tensor(first.loss));
      EXPECT_EQ(bytes_of_tensor(again.hidden), bytes_of_tensor(first.hidden));
      EXPECT_EQ(bytes_of_tensor(again.weight), bytes_of_tensor(first.weight));
    }
  }
}

TEST(LinearCrossEntropy, WhatIsNotWantedIsNotMade) {
  at::manual_seed(3);
  for (const Number number : {Number::kF32, Number::kBf16}) {
    const LossCase c = make_case(number, 70, 32, 200, 32);
    const LossAnswer all = ours(c, probe_micro_kernels());
    LinearCrossEntropy call = c.call;
    const at::Tensor loss = at::empty({70}), gradient = at::empty_like(c.weight);
    call.loss = loss.data_ptr<float>();
    const at::Tensor memory = dirty_memory(workspace_bytes(call, 2));
    linear_cross_entropy(call, probe_micro_kernels(), 2, memory.data_ptr());
    EXPECT_TRUE(at::equal(loss, all.loss));
    call = c.call;
    call.weight_gradient = gradient.data_ptr();
    const at::Tensor more = dirty_memory(workspace_bytes(call, 2));
    linear_cross_entropy(call, probe_micro_kernels(), 2, more.data_ptr());
    EXPECT_TRUE(at::equal(gradient, all.weight));
  }
}

TEST(LinearCrossEntropy, NothingThatCountsLosesNothingWhateverTheGradient) {
  for (const MicroKernels& kernels : machines()) {
    LossCase c = make_case(Number::kF32, 5, 16, 40, 4);
    c.targets.fill_(-100);
    c.gradient.fill_(std::numeric_limits<float>::infinity());  // one over no tokens
    const LossAnswer answer = ours(c, kernels);
    EXPECT_EQ(answer.loss.abs().sum().item<float>(), 0);
    EXPECT_EQ(answer.hidden.abs().sum().item<float>(), 0);
    EXPECT_EQ(answer.weight.abs().sum().item<float>(), 0);
  }
}

TEST(LinearCrossEntropy, TheFrugalChunkTakesTheSmallerWorkspace) {
  for (const int64_t tokens : {8, 600, 2048, 9000}) {
    LossCase c = make_case(Number::kBf16, tokens, 64, 1000, 512);
    c.call.weight_gradient = c.weight.data_ptr();
    LinearCrossEntropy other = c.call;
    c.call.chunk = frugal_chunk(c.call);
    for (const int64_t chunk : {int64_t{512}, std::max<int64_t>(tokens, 512)}) {
      other.chunk = chunk;
      EXPECT_LE(workspace_bytes(c.call, 1), workspace_bytes(other, 1)) << tokens;
    }
  }
}

// Logits of some hundreds lose their last bits in f32, which of them is luck: errors are those of many cases together.
TEST(LinearCrossEntropy, LargeLogitsDoNotOverflow) {
  const OneThread one;
  for (const MicroKernels& kernels : machines()) {
    constexpr int kCases = 32;
    double mine[4] = {}, theirs[4] = {};
    for (int i = 0; i < kCases; ++i) {
      LossCase c = make_case(Number::kF32, 40, 16, 300, 16);
      c.weight *= 100;
      const LossAnswer got = ours(c, kernels), exact = eager(c, at::kDouble), other = eager(c, at::kFloat);
      const auto add = [&](double* to, const LossAnswer& of) {
        to[0] += distance(of.loss, exact.loss);
        to[1] += distance(of.logp_sum, exact.logp_sum);
        to[2] += distance(of.hidden, exact.hidden);
        to[3] += distance(of.weight, exact.weight);
      };
      add(mine, got);
      add(theirs, other);
    }
    for (int k = 0; k < 4; ++k) EXPECT_LE(mine[k], std::max(2 * theirs[k], kCases * 2e-6)) << "result " << k;
  }
}

TEST(LinearCrossEntropy, ATargetThatIsNoClassIsNamed) {
  LossCase c = make_case(Number::kF32, 3, 16, 40, 4);
  c.targets[1] = 40;
  try {
    ours(c, probe_micro_kernels());
    FAIL() << "a target of 40 passed";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "target 40 of token 1 is not a class: there are 40 (ignored: -100)");
  }
}

}  // namespace
}  // namespace stepc::blocked
