#include "train/machine/signals.h"

#include <csignal>

#include <gtest/gtest.h>
#include <unistd.h>

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

// Its death is told once for each of its threads.
TEST(StopSignals, AnAgentMayAskTwice) {
  StopSignals::set_agent(getpid());
  const StopSignals signals;
  std::raise(SIGTERM);
  std::raise(SIGTERM);
  EXPECT_EQ(StopSignals::received(), SIGTERM);
  StopSignals::set_agent(0);
}

// One lost terminal may be told by the kernel and by the shell.
TEST(StopSignals, ALostTerminalIsNoHurry) {
  const StopSignals signals;
  std::raise(SIGHUP);
  std::raise(SIGHUP);
  std::raise(SIGPIPE);
  std::raise(SIGTERM);  // the first that somebody sent
  EXPECT_EQ(StopSignals::received(), SIGHUP);
  EXPECT_EQ(StopSignals::exit_code(SIGHUP), 129);
  EXPECT_STREQ(signal_name(SIGHUP), "SIGHUP");
  EXPECT_STREQ(signal_name(SIGPIPE), "SIGPIPE");
}

TEST(StopSignals, WhatIsIgnoredStaysSo) {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  {
    const StopSignals signals;
    std::raise(SIGHUP);
    EXPECT_EQ(StopSignals::received(), 0);
  }
  EXPECT_EQ(std::signal(SIGHUP, before), SIG_IGN);
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
