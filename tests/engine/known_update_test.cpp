// Which host number each argument is, and that a replay computes it without the event's host code.
#include "engine/program/known_update.h"

#include <cmath>

#include <gtest/gtest.h>

#include <ATen/Functions.h>

namespace stepc {
namespace {

// One event, whose host code counts on and passes -rate / (1 - 0.9^count), the rate, a list of both, and 2.
class OneUpdate final : public Program {
 public:
  double rate = 0.1;
  uint64_t form = 1;
  double factor = 1;  // of what it passes beside what is known
  int runs = 0;
  at::Tensor counter = at::zeros({}, at::kFloat);
  SupplyFn supply;

  void refresh() override {}
  const std::vector<OwnedKey>& keys() const override { return keys_; }
  void append_tensors(std::vector<at::Tensor>& out) const override { out.push_back(counter); }
  uint64_t structure() const override { return 0; }
  void append_host_state(std::string&) const override {}
  std::shared_ptr<void> save_host_state() override { return nullptr; }
  void restore_host_state(const std::shared_ptr<void>&) override {}

  static double size(double rate, double count) { return -rate / (1 - std::pow(0.9, count)); }
  void run_event(const std::string&) override { step(rate); }
  std::optional<HostNumbers> host_numbers(const std::string&, double count) override { return numbers(rate, count); }
  std::optional<HostNumbers> run_probe(const std::string&, double count) override {
    step(rate / 3);
    return numbers(rate / 3, count);
  }

 private:
  HostNumbers numbers(double rate, double count) const { return {form, {rate, size(rate, count)}}; }
  void step(double rate) {
    ++runs;
    counter.add_(1);
    const double passed = size(rate, counter.item<double>()) * factor;
    supply(CallId(0), 1, passed);
    supply(CallId(1), 0, rate);
    c10::List<double> both({rate, passed});
    supply(CallId(2), 3, both);
    supply(CallId(3), 0, 2.0);
  }

  std::vector<OwnedKey> keys_;
};

class KnownUpdateTest : public ::testing::Test {
 protected:
  OneUpdate program;
  KnownUpdate update{"event", {0}};
  std::vector<HostSupply> taken;
  std::vector<bool> is_new;

  std::string learn() {
    taken.clear();
    const KnownUpdate::RunFn run = [&](const std::function<void()>& host_code, const SupplyFn& supply) {
      program.supply = supply;
      host_code();
      return std::string();
    };
    return update.learn(program, {program.counter}, run, [&](CallId call, size_t arg, const c10::IValue& number) {
      taken.push_back({call, arg, number});
    });
  }
  bool replay() {
    taken.clear();
    is_new.clear();
    return update.replay(program, {program.counter}, [&](const HostSupply& one, bool other) {
      taken.push_back(one);
      is_new.push_back(other);
    });
  }
};

TEST_F(KnownUpdateTest, ReplaysWithoutTheHostCode) {
  EXPECT_FALSE(replay());  // nothing is known yet
  EXPECT_EQ(learn(), "");
  EXPECT_EQ(program.runs, 2);
  EXPECT_EQ(program.counter.item<double>(), 1);  // once, although it ran twice
  EXPECT_EQ(taken.at(1).number.toDouble(), 0.1);

  program.rate = 0.05;
  ASSERT_TRUE(replay());
  EXPECT_EQ(program.runs, 2);
  EXPECT_EQ(program.counter.item<double>(), 2);
  ASSERT_EQ(taken.size(), 4U);
  EXPECT_EQ(taken[0].number.toDouble(), OneUpdate::size(0.05, 2));
  EXPECT_EQ(taken[1].number.toDouble(), 0.05);
  EXPECT_EQ(taken[2].number.toListRef().at(1).toDouble(), OneUpdate::size(0.05, 2));
  EXPECT_EQ(taken[3].number.toDouble(), 2.0);
  EXPECT_EQ(is_new, (std::vector<bool>{true, true, true, false}));
  ASSERT_TRUE(replay());
  EXPECT_EQ(is_new, (std::vector<bool>{true, false, true, false}));
  update.set_stale();
  ASSERT_TRUE(replay());
  EXPECT_EQ(is_new, (std::vector<bool>{true, true, true, true}));
}

TEST_F(KnownUpdateTest, AnotherFormIsLearnedAgain) {
  learn();
  ASSERT_TRUE(replay());
  program.form = 2;
  EXPECT_FALSE(replay());
  EXPECT_EQ(program.counter.item<double>(), 2);
  learn();
  EXPECT_TRUE(replay());
  update.doubt();
  EXPECT_FALSE(replay());
}

TEST_F(KnownUpdateTest, WhatPassesOtherNumbersRunsForGood) {
  program.factor = 1.5;
  EXPECT_EQ(learn(), "");
  EXPECT_FALSE(replay());
  const int runs = program.runs;
  program.factor = 1;
  learn();
  EXPECT_EQ(program.runs, runs + 1);  // and is not tried again
  EXPECT_FALSE(replay());
}

TEST_F(KnownUpdateTest, CountersThatAreNoneRun) {
  learn();
  const at::Tensor both = at::ones({2}, at::kFloat);
  program.counter = both[0];  // others may be counted in this memory
  EXPECT_FALSE(replay());
  program.counter = at::ones({}, at::kBFloat16);
  EXPECT_FALSE(replay());
  EXPECT_EQ(both.sum().item<double>(), 2);
}

}  // namespace
}  // namespace stepc
