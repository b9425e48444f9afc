#include "comm/watch/watchdog.h"

#include <csignal>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

using std::chrono::milliseconds;

class WatchdogTest : public ::testing::Test {
 protected:
  // Whether within 10 s there is such a file.
  [[nodiscard]] bool is_left() const {
    for (int i = 0; i < 1000; ++i, std::this_thread::sleep_for(milliseconds(10)))
      if (std::filesystem::exists(path_)) return true;
    return false;
  }
  TempDir directory_;
  std::filesystem::path path_ = flight_path(directory_.path(), 0);
  std::shared_ptr<Ranks> ranks_ = Ranks::threads(1)[0];
};

TEST_F(WatchdogTest, TellsOfARankThatStaysInOnePlace) {
  Flight& flight = ranks_->flight();
  const uint32_t program = flight.add_program([](uint32_t) {
    return FlightPlace{"matmul", "model.layers.1", "backward", {}};
  });
  Watchdog dog(*ranks_, directory_.path(), begin_attempt(*ranks_), 0.2);
  flight.note_step(3);
  flight.enter(kInStep, /*is_brief=*/true);
  flight.note(program, 17);
  ASSERT_TRUE(is_left());
  const FlightFile file = read_flight(path_);
  EXPECT_EQ(file.end, FlightFile::End::kStuck);
  EXPECT_GT(file.stuck_seconds, 0.2);
  EXPECT_EQ(file.step, 3);
  EXPECT_EQ(file.last.back().instruction, 17);
  EXPECT_EQ(file.last.back().place.module, "model.layers.1");
}

TEST_F(WatchdogTest, IsQuietWhereARankMayStay) {
  Watchdog dog(*ranks_, directory_.path(), begin_attempt(*ranks_), 0.1);
  ranks_->flight().enter("saving", /*is_brief=*/false);
  std::this_thread::sleep_for(milliseconds(1500));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(WatchdogTest, WhatARankLeavesStays) {
  const Attempt attempt = begin_attempt(*ranks_);
  {
    Watchdog dog(*ranks_, directory_.path(), attempt, 0.1);
    ranks_->flight().enter("agreeing", /*is_brief=*/true);
    dog.leave(FlightFile::End::kLost, "lost", {"all-gather", {0}, {}, true});
    std::this_thread::sleep_for(milliseconds(1500));
  }
  EXPECT_EQ(read_flight(path_).end, FlightFile::End::kLost);
  EXPECT_EQ(read_flight(path_).attempt, attempt);
}

TEST_F(WatchdogTest, LeavesNothingWhereThereIsNoRun) {
  Watchdog dog(*ranks_, directory_ / "none", begin_attempt(*ranks_), 10);
  dog.leave(FlightFile::End::kFailed, "why");
  EXPECT_FALSE(std::filesystem::exists(directory_ / "none"));
}

// By the system: the process itself does nothing any more.
TEST(EndOfTheStopped, EndsAProcessThatIsStopped) {
  const pid_t child = fork();
  if (child == 0) {
    const EndOfTheStopped end(1);
    raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
}

TEST(EndOfTheStopped, SparesOneThatRuns) {
  const pid_t child = fork();
  if (child == 0) {
    {
      const EndOfTheStopped end(1);
      for (int i = 0; i < 15; ++i) {
        std::this_thread::sleep_for(milliseconds(100));
        end.postpone();
      }
    }
    std::this_thread::sleep_for(milliseconds(1200));  // it is off by now
    _exit(7);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

}  // namespace
}  // namespace stepc
