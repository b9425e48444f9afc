#include "train/signals.h"

#include <csignal>

#include <gtest/gtest.h>

namespace stepc::train {
namespace {

TEST(StopSignals, TheFirstIsRemembered) {
  const StopSignals signals;
  EXPECT_EQ(StopSignals::received(), 0);
  std::raise(SIGTERM);
  EXPECT_EQ(StopSignals::received(), SIGTERM);
  EXPECT_EQ(StopSignals::exit_code(SIGTERM), 143);
}

TEST(StopSignalsDeathTest, TheSecondEndsTheProcess) {
  const auto twice = [] {
    const StopSignals signals;
    std::raise(SIGINT);
    std::raise(SIGINT);
  };
  EXPECT_EXIT(twice(), ::testing::ExitedWithCode(130), "");
}

TEST(StopSignals, ANewRunStartsClean) {
  {
    const StopSignals before;
    std::raise(SIGINT);
  }
  const StopSignals signals;
  EXPECT_EQ(StopSignals::received(), 0);
}

}  // namespace
}  // namespace stepc::train
