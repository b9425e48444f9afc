#include "blocked/linear_cross_entropy.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "tests/blocked/reference.h"

namespace stepc::blocked {
namespace {

struct Case {
  LinearCrossEntropy call;
  at::Tensor hidden, weight, targets;
  float scale = 1;
};

struct Answer {
  at::Tensor loss, hidden, weight;
};

Case make_case(Number number, int64_t tokens, int64_t width, int64_t classes, int64_t chunk) {
  Case c;
  c.hidden = random_tensor({tokens, width}, number);
  c.weight = random_tensor({classes, width}, number) / std::sqrt(static_cast<double>(width)) * 2;
  c.targets = at::randint(0, classes, {tokens}, at::kLong);
  c.call.type = number;
  c.call.tokens = tokens;
  c.call.width = width;
  c.call.classes = classes;
  c.call.hidden = c.hidden.data_ptr();
  c.call.hidden_stride = width;
  c.call.weight = c.weight.data_ptr();
  c.call.weight_stride = width;
  c.call.targets = c.targets.data_ptr<int64_t>();
  c.call.chunk = chunk;
  return c;
}

// In `type`: float64 for the reference, the case's own for what eager makes of it.
Answer eager(const Case& c, at::ScalarType type) {
  const at::Tensor hidden = c.hidden.to(type), weight = c.weight.to(type);
  const at::Tensor logits = at::matmul(hidden, weight.t());
  const int64_t reduction = c.call.mean ? at::Reduction::Mean : at::Reduction::Sum;
  const at::Tensor counts = c.targets != c.call.ignore_index;
  const at::Tensor logp = at::log_softmax(logits, 1);
  const at::Tensor loss =
      at::cross_entropy_loss(logits, c.targets, {}, reduction, c.call.ignore_index, c.call.label_smoothing);
  const double counted = counts.sum().item<double>();
  at::Tensor goal = at::full_like(logp, c.call.label_smoothing / static_cast<double>(c.call.classes));
  goal.scatter_add_(1, c.targets.clamp_min(0).unsqueeze(1),
                    at::full({c.call.tokens, 1}, 1 - c.call.label_smoothing, goal.options()));
  at::Tensor gradient =
      (logp.exp() - goal) * counts.unsqueeze(1) * (c.scale / (c.call.mean ? std::max(counted, 1.0) : 1));
  return {loss, at::matmul(gradient, weight), at::matmul(gradient.t(), hidden)};
}

Answer ours(const Case& c, const MicroKernels& kernels, int threads = 2) {
  Answer answer{at::full({}, 7.0, at::kFloat), at::full_like(c.hidden, 7), at::full(c.weight.sizes(), 7.0, at::kFloat)};
  LinearCrossEntropyResult result;
  result.loss = answer.loss.data_ptr<float>();
  result.scale = c.scale;
  result.hidden_gradient = answer.hidden.data_ptr();
  result.hidden_gradient_stride = c.call.width;
  result.weight_gradient = answer.weight.data_ptr<float>();
  const at::Tensor memory = dirty_memory(workspace_bytes(c.call, threads));
  linear_cross_entropy(c.call, result, kernels, threads, memory.data_ptr());
  return answer;
}

void expect_near(const Answer& got, const Case& c, const std::string& what) {
  const Answer exact = eager(c, at::kDouble), theirs = eager(c, aten_type(c.call.type));
  const double floor = c.call.type == Number::kF32 ? 2e-6 : 3e-3;
  ASSERT_NEAR(got.loss.item<double>(), exact.loss.item<double>(),
              std::max(2 * std::abs(theirs.loss.item<double>() - exact.loss.item<double>()),
                       1e-5 * std::abs(exact.loss.item<double>())) +
                  1e-5)
      << what;
  if (c.call.classes == 1) {  // nothing to learn: all zero, and so no relative error
    ASSERT_LE(got.hidden.abs().max().item<double>(), 1e-4) << what;
    ASSERT_LE(got.weight.abs().max().item<double>(), 1e-4) << what;
    return;
  }
  ASSERT_LE(distance(got.hidden, exact.hidden), std::max(2 * distance(theirs.hidden, exact.hidden), floor)) << what;
  ASSERT_LE(distance(got.weight, exact.weight), std::max(2 * distance(theirs.weight, exact.weight), floor)) << what;
}

TEST(LinearCrossEntropy, EqualsTheReferenceOverRandomCalls) {
  const OneThread one;
  at::manual_seed(1);
  Random random(1);
  const std::vector<MicroKernels> all = machines();
  for (int round = 0; round < 60; ++round) {
    const Number number = random.coin() ? Number::kBf16 : Number::kF32;
    Case c = make_case(number, random.one_of<int64_t>({1, 2, 31, 64, 65, 130, random.between(1, 200)}),
                       random.one_of<int64_t>({1, 16, 33, 64, 96}),
                       random.one_of<int64_t>({1, 2, 100, 128, 129, 500, random.between(1, 700)}),
                       random.one_of<int64_t>({1, 32, 50, 64, 512}));
    c.call.mean = random.coin();
    c.call.label_smoothing = random.coin() ? 0.1F : 0.0F;
    c.scale = random.coin() ? 1.0F : 3.5F;
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
    const Case c = make_case(number, 150, 64, 9000, 64);
    const Answer first = ours(c, probe_micro_kernels(), 1);
    expect_near(first, c, "9000 classes");
    for (const int threads : {2, 3, 2}) {
      const Answer again = ours(c, probe_micro_kernels(), threads);
      EXPECT_EQ(bytes_of_tensor(again.loss), bytes_of_tensor(first.loss));
      EXPECT_EQ(bytes_of_tensor(again.hidden), bytes_of_tensor(first.hidden));
      EXPECT_EQ(bytes_of_tensor(again.weight), bytes_of_tensor(first.weight));
    }
  }
}

TEST(LinearCrossEntropy, AddsToAGradientThatIsThere) {
  at::manual_seed(3);
  const Case c = make_case(Number::kF32, 70, 32, 200, 32);
  const Answer once = ours(c, probe_micro_kernels());
  const at::Tensor sum = once.weight.clone();
  LinearCrossEntropyResult result;
  result.weight_gradient = sum.data_ptr<float>();
  result.accumulate = true;
  const at::Tensor memory = dirty_memory(workspace_bytes(c.call, 2));
  linear_cross_entropy(c.call, result, probe_micro_kernels(), 2, memory.data_ptr());
  EXPECT_LE(distance(sum, 2 * once.weight.to(at::kDouble)), 1e-6);
}

TEST(LinearCrossEntropy, NothingThatCountsIsNanForTheMeanAndZeroForTheSum) {
  for (const MicroKernels& kernels : machines()) {
    for (const bool mean : {true, false}) {
      Case c = make_case(Number::kF32, 5, 16, 40, 4);
      c.targets.fill_(-100);
      c.call.mean = mean;
      const Answer answer = ours(c, kernels);
      EXPECT_EQ(std::isnan(answer.loss.item<float>()), mean);
      EXPECT_EQ(answer.hidden.abs().sum().item<float>(), 0);
      EXPECT_EQ(answer.weight.abs().sum().item<float>(), 0);
    }
  }
}

TEST(LinearCrossEntropy, LargeLogitsDoNotOverflow) {
  const OneThread one;
  Case c = make_case(Number::kF32, 40, 16, 300, 16);
  c.weight *= 100;
  for (const MicroKernels& kernels : machines()) expect_near(ours(c, kernels), c, "large logits");
}

TEST(LinearCrossEntropy, ATargetThatIsNoClassIsNamed) {
  Case c = make_case(Number::kF32, 3, 16, 40, 4);
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
