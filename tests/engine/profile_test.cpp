// A timed replay: every instruction is there once, in order and inside of the step; without one there is no profile.
#include "cost/profile.h"

#include <algorithm>

#include <gtest/gtest.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "engine/stepc.h"
#include "optim/adamw.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

class ProfiledStep : public ::testing::TestWithParam<Mode> {
 protected:
  using Fn = std::function<at::Tensor(const at::Tensor&)>;

  explicit ProfiledStep(Verify verify = Verify::first()) {
    Config config;
    config.mode = GetParam();
    config.verify = verify;
    step_ = std::make_unique<Accelerated<Fn>>(accelerate(Fn([this](const at::Tensor& x) {
                                                           at::Tensor loss = model_->forward(x).pow(2).mean();
                                                           loss.backward();
                                                           optimizer_.step();
                                                           optimizer_.zero_grad();
                                                           return loss;
                                                         }),
                                                         {model_}, {optimizer_}, config));
  }
  void run(int calls) {
    for (int i = 0; i < calls; ++i) (*step_)(torch::randn({16, 8}));
  }
  Accelerated<Fn>& step() { return *step_; }

 private:
  static std::vector<std::pair<std::string, at::Tensor>> named(torch::nn::Sequential& model) {
    std::vector<std::pair<std::string, at::Tensor>> out;
    for (auto& item : model->named_parameters()) out.emplace_back(item.key(), item.value());
    return out;
  }

  torch::nn::Sequential model_{torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 4)};
  optim::AdamW optimizer_{named(model_), {}};
  std::unique_ptr<Accelerated<Fn>> step_;
};

TEST_P(ProfiledStep, HasEveryInstructionOnceInOrder) {
  run(4);
  step().start_profile();
  run(2);
  const std::optional<Profile> profile = step().finish_profile();
  ASSERT_TRUE(profile.has_value());
  EXPECT_EQ(profile->mode, name_of(GetParam()));
  EXPECT_FALSE(profile->is_calibrated) << "there is no kernel directory, so no measured target";
  ASSERT_EQ(profile->instructions.size(), step().stats().instructions);
  double end = 0, sum = 0, flops = 0;
  for (size_t i = 0; i < profile->instructions.size(); ++i) {
    const ProfiledInstruction& one = profile->instructions[i];
    EXPECT_EQ(one.index, i);
    EXPECT_FALSE(one.name.empty());
    EXPECT_GE(one.seconds, 0);
    EXPECT_GE(one.begin_seconds, end);
    EXPECT_GE(one.work.bytes, 0);
    EXPECT_GE(one.predicted_seconds, 0);
    EXPECT_FALSE(one.work_class.empty());
    end = one.begin_seconds + one.seconds;
    sum += one.seconds;
    flops += one.work.all_flops();
  }
  EXPECT_LE(end, profile->seconds);
  EXPECT_LE(sum, profile->seconds);
  // The matmuls: two forward, three backward.
  EXPECT_GE(flops, 2.0 * 16 * (8 * 32 + 32 * 4) + 2.0 * 16 * (8 * 32 + 2 * 32 * 4));
  const auto has = [&](Phase phase) {
    return std::ranges::any_of(profile->instructions, [&](const auto& one) { return one.phase == phase; });
  };
  EXPECT_TRUE(has(Phase::kForward) && has(Phase::kBackward) && has(Phase::kUpdate));
}

TEST_P(ProfiledStep, IsNothingWithoutAReplay) {
  step().start_profile();
  run(1);
  EXPECT_FALSE(step().finish_profile().has_value()) << "the call was recorded";
  EXPECT_FALSE(step().finish_profile().has_value()) << "no profile was begun";
  run(5);
  step().start_profile();
  EXPECT_FALSE(step().finish_profile().has_value()) << "no call was made";
}

class ProfiledVerifiedStep : public ProfiledStep {
 protected:
  ProfiledVerifiedStep() : ProfiledStep(Verify::always()) {}
};

TEST_P(ProfiledVerifiedStep, IsNotComparedWhileItIsTimed) {
  run(5);
  const uint64_t before = step().stats().verifications;
  step().start_profile();
  run(2);
  EXPECT_TRUE(step().finish_profile().has_value());
  EXPECT_EQ(step().stats().verifications, before);
  run(1);
  EXPECT_EQ(step().stats().verifications, before + 1);
}

const auto kModes = ::testing::Values(Mode::kExact, Mode::kFast);
const auto kName = [](const auto& info) { return std::string(name_of(info.param)); };
INSTANTIATE_TEST_SUITE_P(Modes, ProfiledStep, kModes, kName);
INSTANTIATE_TEST_SUITE_P(Modes, ProfiledVerifiedStep, kModes, kName);

TEST(Profile, EagerModeHasNoInstructions) {
  Config config;
  config.mode = Mode::kEager;
  auto step = accelerate([](const at::Tensor& x) { return x * 2; }, {}, {}, config);
  EXPECT_USER_ERROR(step.start_profile(), "mode is \"eager\": a profile times the instructions of a plan");
}

}  // namespace
}  // namespace stepc
