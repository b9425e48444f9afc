// What a recording cannot hold runs eagerly, says why once, and stays right; what changes is noticed.
#include <gtest/gtest.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "tests/engine/log_lines.h"
#include "tests/engine/twins.h"

namespace stepc {
namespace {

using test::LogLines;

torch::nn::Sequential make() {
  return torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::ReLU(), torch::nn::Linear(16, 4));
}
at::Tensor batch(int i) {
  torch::manual_seed(i);
  return torch::randn({4, 8});
}
using Twins = test::Twins;

TEST(Fallback, HostReadThatDecidesRunsBesideThePlan) {
  const LogLines lines;
  Twins twins(make, [](torch::nn::Sequential& model, const at::Tensor& x) {
    at::Tensor y = model->forward(x);
    if (y.sum().item<float>() > 0) y = y * 2;
    return y.pow(2).mean();
  });
  twins.run(40, batch);
  EXPECT_GE(twins.stats().replays, 5U);
  EXPECT_EQ(lines.count("runs eagerly"), 0) << lines.text();
  EXPECT_NE(lines.text().find("runs beside every replay: aten::_local_scalar_dense"), std::string::npos)
      << lines.text();
  EXPECT_NE(lines.text().find("reads a float that changes from step to step on the host"), std::string::npos)
      << lines.text();
}

TEST(Fallback, DataDependentShapeIsNamed) {
  const LogLines lines;
  Twins twins(make, [](torch::nn::Sequential& model, const at::Tensor& x) {
    const at::Tensor y = model->forward(x);
    return y.masked_select(y > 0).sum();
  });
  twins.run(10, batch);
  EXPECT_NE(lines.text().find("shape depends on data"), std::string::npos) << lines.text();
}

TEST(Fallback, MemoryFilledThroughAPointerIsDataOfTheHosts) {
  int calls = 0;
  Twins twins(make, [&](torch::nn::Sequential& model, const at::Tensor& x) {
    at::Tensor scale = at::empty({4});
    for (int i = 0; i < 4; ++i)
      scale.mutable_data_ptr<float>()[i] = static_cast<float>(1 + calls / 2);  // twins take turns
    ++calls;
    return (model->forward(x) * scale).pow(2).mean();
  });
  twins.run(10, batch);
  EXPECT_EQ(twins.stats().plans, 1U);
  EXPECT_GE(twins.stats().replays, 4U);
}

TEST(Fallback, TensorOfHostConstantsIsPlanned) {
  Twins twins(make, [&](torch::nn::Sequential& model, const at::Tensor& x) {
    return (model->forward(x) * torch::tensor({0.5F, 1.0F, 2.0F, 3.0F})).pow(2).mean();
  });
  twins.run(10, batch);
  EXPECT_EQ(twins.stats().plans, 1U);
  EXPECT_GE(twins.stats().replays, 6U);
}

TEST(Fallback, ForeignTensorIsReportedWithShapeAndOpAndReadAsData) {
  const LogLines lines;
  const at::Tensor table = torch::full({4, 8}, 0.5F);
  Twins twins(
      make, [&](torch::nn::Sequential& model, const at::Tensor& x) { return model->forward(x + table).pow(2).mean(); });
  twins.run(10, batch);
  EXPECT_GE(twins.stats().replays, 3U);
  EXPECT_NE(lines.text().find("aten::add.Tensor"), std::string::npos) << lines.text();
  EXPECT_NE(lines.text().find("Float[4, 8] tensor that is no parameter"), std::string::npos) << lines.text();
}

TEST(Fallback, TensorKeptByTheProgramIsReportedAndGiven) {
  const LogLines lines;
  std::vector<at::Tensor> kept;
  Twins twins(make, [&](torch::nn::Sequential& model, const at::Tensor& x) {
    at::Tensor loss = model->forward(x).pow(2).mean();
    kept.push_back(loss.detach().clone());
    return loss;
  });
  twins.run(10, batch);
  EXPECT_GE(twins.stats().replays, 3U);
  EXPECT_EQ(kept.size(), 20U);
  for (size_t i = 0; i < kept.size(); i += 2) EXPECT_TRUE(kept[i].equal(kept[i + 1])) << i / 2;
  EXPECT_NE(lines.text().find("is kept after it"), std::string::npos) << lines.text();
}

TEST(Fallback, ChangingHostNumberIsGivenToThePlan) {
  int calls = 0;
  Twins twins(make, [&](torch::nn::Sequential& model, const at::Tensor& x) {
    return (model->forward(x) * static_cast<double>(1 + calls++ / 2)).pow(2).mean();
  });
  twins.run(16, batch);
  EXPECT_GE(twins.stats().replays, 4U);
}

TEST(Fallback, FirstReplayIsVerifiedAndEagerCounts) {
  // A host number that is flat while recorded and changes at the first replay: verification finds it, and the step that
  // counts is eager's.
  const LogLines lines;
  int calls = 0;
  Twins twins(make, [&](torch::nn::Sequential& model, const at::Tensor& x) {
    const int step = calls++ / 2;
    return (model->forward(x) * (step < 2 ? 1.0 : 2.0)).pow(2).mean();
  });
  twins.run(8, batch);
  EXPECT_EQ(twins.stats().replays, 0U);
  EXPECT_NE(lines.text().find("a replay differs from eager in"), std::string::npos) << lines.text();
}

TEST(Fallback, NewShapeIsAnotherPlanWithItsReason) {
  const LogLines lines;
  Twins twins(make);
  twins.run(5, batch);
  twins.run(5, [](int i) { return batch(i).slice(0, 0, 3).contiguous(); });
  EXPECT_EQ(twins.stats().plans, 2U);
  EXPECT_NE(lines.text().find("new shape: batch 0 4x8 -> 3x8"), std::string::npos) << lines.text();
}

TEST(Fallback, ChangesBetweenStepsAreNoticed) {
  Twins twins(make);
  twins.run(5, batch);
  // Other memory for a parameter, as loading a state dict by assignment does.
  for (auto* model : {&twins.a(), &twins.b()}) {
    at::Tensor weight = (*model)->named_parameters()["0.weight"];
    weight.set_data(weight.detach().clone());
  }
  twins.run(3, batch);
  // A frozen parameter.
  for (auto* model : {&twins.a(), &twins.b()}) (*model)->named_parameters()["0.bias"].set_requires_grad(false);
  twins.run(6, batch);
  for (auto* model : {&twins.a(), &twins.b()}) (*model)->eval();
  twins.run(6, batch);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  twins.run(5, batch);
  at::set_num_threads(threads);
}

TEST(Fallback, AThrowingStepLeavesNothingHalfRecorded) {
  torch::nn::Linear model(4, 4);
  optim::AdamW optimizer({{"weight", model->weight}, {"bias", model->bias}}, {});
  int calls = 0;
  auto step = accelerate(
      [&](const at::Tensor& x) {
        at::Tensor loss = model->forward(x).sum();
        if (++calls == 2) throw std::runtime_error("the user's own");
        loss.backward();
        optimizer.step();
        optimizer.zero_grad();
        return loss;
      },
      {model}, {optimizer});
  const at::Tensor x = torch::ones({2, 4});
  step(x);
  try {
    step(x);
    FAIL() << "the exception is swallowed";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "the user's own");
  }
  EXPECT_FALSE(is_recording());
  for (int i = 0; i < 5; ++i) step(x);
  EXPECT_EQ(step.stats().plans, 1U);
  EXPECT_GE(step.stats().replays, 1U);
}

TEST(Fallback, WhereAReplayThrowsTheStepRunsAsItIsAndThrows) {
  for (const Mode mode : {Mode::kExact, Mode::kFast}) {
    torch::nn::Embedding model(10, 4);
    const auto loss = [&](const at::Tensor& ids) { return (model->forward(ids) * 2).exp().sum().detach(); };
    auto step = accelerate(loss, {model}, {}, {.mode = mode});
    const at::Tensor good = torch::zeros({3}, at::kLong);
    for (int i = 0; i < 5; ++i) step(good);
    ASSERT_GE(step.stats().replays, 1U);
    const at::Tensor before = step(good);
    for (const int64_t bad : {99, 10, -1}) {
      try {
        step(torch::full({3}, bad, at::kLong));
        FAIL() << "index " << bad << " of 10 is accepted";
      } catch (const c10::Error& error) {
        EXPECT_EQ(std::string(error.what()).find("in the replayed step"), std::string::npos) << error.what();
      }
    }
    EXPECT_EQ(step.stats().eager_calls, 1U) << "the verification";
    test::expect_same_bits(before, step(good), "after the error");
  }
}

TEST(Fallback, NestedStepsAreRefused) {
  torch::nn::Linear model(4, 4);
  auto inner = accelerate([&](const at::Tensor& x) { return model->forward(x).sum().detach(); }, {model}, {});
  auto outer = accelerate([&](const at::Tensor& x) { return inner(x); }, {model}, {});
  try {
    outer(torch::ones({2, 4}));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(
        error.what(),
        "an accelerated step is called inside another one that is being recorded: accelerate the outer step only");
  }
}

TEST(Fallback, GradientsThatTheUserKeepsOwnTheirStorage) {
  torch::nn::Linear a(4, 4);
  torch::nn::Linear b(4, 4);
  {
    const torch::NoGradGuard no_grad;
    b->weight.copy_(a->weight);
    b->bias.copy_(a->bias);
  }
  const auto body = [](torch::nn::Linear& model, const at::Tensor& x) {
    model->zero_grad();
    at::Tensor loss = model->forward(x).pow(2).sum();
    loss.backward();
    return loss;
  };
  auto step = accelerate([&](const at::Tensor& x) { return body(b, x); }, {b}, {}, {.mode = Mode::kExact});
  std::vector<std::pair<at::Tensor, at::Tensor>> kept;
  for (int i = 0; i < 8; ++i) {
    const at::Tensor x = torch::full({2, 4}, 0.1F * static_cast<float>(i + 1));
    body(a, x);
    step(x);
    test::expect_same_bits(a->weight.grad(), b->weight.grad(), "gradient");
    kept.emplace_back(a->weight.grad().clone(), b->weight.grad());
  }
  EXPECT_GE(step.stats().replays, 3U);
  EXPECT_EQ(step.stats().unplanned_allocations, 0U);
  for (const auto& [expected, held] : kept) test::expect_same_bits(expected, held, "kept gradient");
}

TEST(Fallback, BatchesOfAnyNest) {
  torch::nn::Linear model(4, 2);
  struct Batch {
    at::Tensor x;
    std::map<std::string, at::Tensor> extra;
    auto fields() { return std::tie(x, extra); }
  };
  auto step = accelerate(
      [&](const Batch& b) {
        std::map<std::string, at::Tensor> out;
        out["sum"] = (model->forward(b.x) * b.extra.at("scale")).sum().detach();
        out["x"] = b.x;
        return out;
      },
      {model}, {}, {.mode = Mode::kExact});
  for (int i = 0; i < 6; ++i) {
    const Batch b{torch::full({3, 4}, static_cast<float>(i)), {{"scale", torch::full({}, 2.0F)}}};
    const auto out = step(b);
    test::expect_same_bits((model->forward(b.x) * 2.0F).sum(), out.at("sum"), "sum");
    test::expect_same_bits(b.x, out.at("x"), "a batch tensor that is returned");
  }
  EXPECT_GE(step.stats().replays, 2U);
}

}  // namespace
}  // namespace stepc
