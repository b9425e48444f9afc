// Shell scripts in the stead of ranks, and the launcher in a process of its own, whose output goes to files.
#include "train/command/local_ranks.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc::train {
namespace {
namespace fs = std::filesystem;

std::string text_of(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

template <class Condition>
bool comes_true(const Condition& condition) {
  constexpr double kPatienceSeconds = 20;
  for (const auto begin = Clock::now(); seconds_since(begin) < kPatienceSeconds;) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

class LocalRanksTest : public ::testing::Test {
 public:
  LocalRanksTest() {
    fs::create_directory(directory_ / "logs");
    fs::create_directory(directory_ / "groups");
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // what loses its parent becomes this process's child
  }
  ~LocalRanksTest() override { ::prctl(PR_SET_CHILD_SUBREAPER, 0); }

  // Every rank runs it, after noting its process group; `$dir` is the test's directory.
  LocalRanks plan_of(int ranks, const std::string& script) const {
    const std::string dir = directory_.path().string();
    LocalRanks plan;
    plan.ranks = ranks;
    plan.command = {"/bin/sh", "-c", str("dir={}; : > $dir/groups/$$\n{}", dir, script)};
    plan.logs = directory_ / "logs";
    return plan;
  }

  // The launcher as a process.
  pid_t start(const LocalRanks& plan) const {
    const pid_t pid = ::fork();
    if (pid == 0) {
      for (const auto& [name, descriptor] : {std::pair("out", STDOUT_FILENO), std::pair("err", STDERR_FILENO)})
        ::dup2(::open((directory_ / name).c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666), descriptor);
      ::_exit(run_local_ranks(plan));
    }
    return pid;
  }
  // Its exit status, and all that it has started have ended.
  int status_of(pid_t launcher) const {
    int status = 0;
    ::waitpid(launcher, &status, 0);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(left_groups(), std::vector<pid_t>());
    return WEXITSTATUS(status);
  }
  int run(const LocalRanks& plan) const { return status_of(start(plan)); }

  std::vector<pid_t> groups() const {
    std::vector<pid_t> all;
    for (const auto& each : fs::directory_iterator(directory_ / "groups"))
      all.push_back(std::stoi(each.path().filename().string()));
    return all;
  }
  // In which a process still runs; one that was just killed may take a moment to go.
  std::vector<pid_t> left_groups() const {
    std::vector<pid_t> left;
    const auto look = [&] {
      while (::waitpid(-1, nullptr, WNOHANG) > 0) {
      }
      left = groups();
      std::erase_if(left, [](pid_t group) { return ::kill(-group, 0) != 0; });
      return left.empty();
    };
    comes_true(look);
    return left;
  }
  void wait_for_files(const std::string& start, size_t count) const {
    const auto are_there = [&] {
      size_t found = 0;
      for (const auto& each : fs::directory_iterator(directory_.path()))
        found += each.path().filename().string().starts_with(start) ? 1 : 0;
      return found == count;
    };
    EXPECT_TRUE(comes_true(are_there)) << start;
  }

  std::string out() const { return text_of(directory_ / "out"); }
  std::string err() const { return text_of(directory_ / "err"); }
  std::string log(int rank) const { return text_of(directory_ / "logs" / str("rank-{}.log", rank)); }

 protected:
  TempDir directory_;
};

TEST_F(LocalRanksTest, EachKnowsItsPlace) {
  ::setenv("WORLD_SIZE", "7", 1);  // ours counts
  const int status = run(plan_of(3,
                                 "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $STEPC_LAUNCHER\n"
                                 "echo $MASTER_PORT > $dir/port-$RANK; echo \"c $STEPC_LAUNCHER_COLUMNS.\"; cat"));
  ::unsetenv("WORLD_SIZE");
  EXPECT_EQ(status, 0);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(log(rank), str("{} {} 3 3 127.0.0.1 1\nc .\n", rank, rank));
  EXPECT_EQ(text_of(directory_ / "port-0"), text_of(directory_ / "port-2"));
  EXPECT_GT(std::stoi(text_of(directory_ / "port-1")), 1023);
}

// Rank 0 alone, both streams, in the order of each, and as they come.
TEST_F(LocalRanksTest, RankZeroIsShown) {
  const pid_t launcher =
      start(plan_of(2,
                    "i=0; while [ $i -lt 2000 ]; do echo line $i of $RANK; i=$((i + 1)); done\n"
                    "printf 'step 1\\r\\033[Kstep 2\\n'; echo a warning of $RANK >&2\n"
                    "touch $dir/said-$RANK; while [ ! -e $dir/go ]; do sleep 0.01; done; echo the end"));
  std::string lines;
  for (int i = 0; i < 2000; ++i) lines += str("line {} of 0\n", i);
  lines += "step 1\r\033[Kstep 2\n";
  const std::string first = str("2 ranks on this machine, whose output is in {}\n", (directory_ / "logs").string());
  EXPECT_TRUE(comes_true([&] { return out() == first + lines; }));
  EXPECT_TRUE(comes_true([&] { return err() == "a warning of 0\n"; }));
  wait_for_files("said-", 2);
  std::ofstream(directory_ / "go");
  EXPECT_EQ(status_of(launcher), 0);
  EXPECT_EQ(out(), first + lines + "the end\n");
  EXPECT_EQ(log(0).size(), (lines + "the end\n" + err()).size());
  EXPECT_NE(log(1).find("line 1999 of 1\n"), std::string::npos);
  EXPECT_NE(log(1).find("a warning of 1\n"), std::string::npos);
}

TEST_F(LocalRanksTest, LogsAreAddedTo) {
  EXPECT_EQ(run(plan_of(2, "echo before")), 0);
  EXPECT_EQ(run(plan_of(2, "echo after")), 0);
  EXPECT_EQ(log(1), "before\nafter\n");
}

// The others sleep, and have children that do.
TEST_F(LocalRanksTest, TheFirstFailureEndsAll) {
  const auto begin = Clock::now();
  const int status = run(plan_of(4,
                                 "if [ $RANK = 2 ]; then while [ $(ls $dir/groups | wc -l) -lt 4 ]; do sleep 0.01; "
                                 "done; seq 1 30 >&2; echo stepc: no such thing >&2; echo more; exit 3; fi\n"
                                 "sleep 100 & sleep 100"));
  EXPECT_EQ(status, 3);
  EXPECT_LT(seconds_since(begin), 9);  // no grace is waited for
  std::string expected;
  for (int i = 22; i <= 30; ++i) expected += str("rank 2: {}\n", i);
  EXPECT_EQ(err(), expected + "rank 2: stepc: no such thing\nstepc: rank 2 of 4 failed with status 3\n");
  EXPECT_EQ(groups().size(), 4U);
}

// Its line was shown as it came; that of another, which misses it, is not.
TEST_F(LocalRanksTest, AFailureOfRankZeroIsSaidOnce) {
  const int status = run(plan_of(2,
                                 "trap 'echo stepc: lost rank 0 >&2; exit 1' TERM; touch $dir/up-$RANK\n"
                                 "if [ $RANK = 0 ]; then while [ ! -e $dir/up-1 ]; do sleep 0.01; done\n"
                                 "echo stepc: bad input >&2; exit 2; fi; while :; do sleep 0.01; done"));
  EXPECT_EQ(status, 2);
  EXPECT_EQ(err(), "stepc: bad input\nstepc: rank 0 of 2 failed with status 2\n");
  EXPECT_EQ(log(1), "stepc: lost rank 0\n");
}

TEST_F(LocalRanksTest, WhatFollowsAFailureIsNotShown) {
  const int status =
      run(plan_of(2,
                  "trap 'echo stepc: lost rank 1 >&2; echo saved; exit 1' TERM; printf 'step 7'; touch $dir/up-$RANK\n"
                  "if [ $RANK = 1 ]; then while [ ! -e $dir/up-0 ]; do sleep 0.01; done; kill -SEGV $$; fi\n"
                  "while :; do sleep 0.01; done"));
  EXPECT_EQ(status, 128 + SIGSEGV);
  EXPECT_EQ(err(), "stepc: rank 1 of 2 was ended by signal 11 (Segmentation fault)\n");
  EXPECT_TRUE(out().ends_with("step 7saved\n")) << out();
  EXPECT_NE(log(0).find("stepc: lost rank 1\n"), std::string::npos) << log(0);
}

TEST_F(LocalRanksTest, WhatAllRanksSayIsShownOnce) {
  const int status = run(plan_of(2,
                                 "echo stepc: no such file >&2; touch $dir/up-$RANK\n"
                                 "while [ ! -e $dir/up-0 ]; do sleep 0.01; done; [ $RANK = 0 ] && sleep 0.5; exit 2"));
  EXPECT_EQ(status, 2);
  EXPECT_EQ(err(), "stepc: no such file\nstepc: rank 1 of 2 failed with status 2\n");
}

// Rank 0 is seen to end first, for it lost the other; that one is to name.
TEST_F(LocalRanksTest, TheRankThatWasLostIsNamed) {
  const int status =
      run(plan_of(2, str("trap '' TERM; touch $dir/up-$RANK; while [ ! -e $dir/up-1 ]; do sleep 0.01; done\n"
                         "[ $RANK = 0 ] && echo stepc: lost rank 1 >&2 && exit {}\n"
                         "sleep 0.5; echo stepc: bad input >&2; exit 2",
                         kLostRankStatus)));
  EXPECT_EQ(status, 2);
  EXPECT_EQ(err(), "stepc: lost rank 1\nrank 1: stepc: bad input\nstepc: rank 1 of 2 failed with status 2\n");
}

// It was given up by the other, and does not even take SIGTERM.
TEST_F(LocalRanksTest, TheRankThatHangsIsNamed) {
  LocalRanks plan = plan_of(2, str("trap '' TERM; touch $dir/up-$RANK; while [ ! -e $dir/up-1 ]; do sleep 0.01; done\n"
                                   "[ $RANK = 0 ] && echo stepc: lost rank 1 >&2 && exit {}\nkill -STOP $$",
                                   kLostRankStatus));
  plan.failure_grace_seconds = 0.3;
  EXPECT_EQ(run(plan), 1);
  EXPECT_EQ(err(), "stepc: lost rank 1\nstepc: rank 1 of 2 did not answer the others and was killed\n");
}

TEST_F(LocalRanksTest, OfALostRankAloneTheStatusIsOne) {
  EXPECT_EQ(run(plan_of(2, str("[ $RANK = 1 ] && exit {}; exit 0", kLostRankStatus))), 1);
  EXPECT_EQ(err(), "stepc: rank 1 of 2 failed with status 1\n");
}

// A signal to one of them: the others stop at the same step, and may take their time.
TEST_F(LocalRanksTest, RanksThatStopTogetherHaveNotFailed) {
  LocalRanks plan = plan_of(2, "[ $RANK = 0 ] && sleep 0.5; echo saved; exit 143");
  plan.failure_grace_seconds = 0.1;
  EXPECT_EQ(run(plan), 143);
  EXPECT_EQ(err(), "");
  EXPECT_EQ(log(0), "saved\n");
}

TEST_F(LocalRanksTest, WhoIgnoresSigtermIsKilled) {
  LocalRanks plan =
      plan_of(3,
              "trap '' TERM; printf 'step 7'; touch $dir/up-$RANK\n"
              "if [ $RANK = 1 ]; then while [ $(ls $dir | grep -c up-) -lt 3 ]; do sleep 0.01; done; exit 3; fi\n"
              "while :; do sleep 0.1; done");
  plan.failure_grace_seconds = 0.3;
  EXPECT_EQ(run(plan), 3);
  EXPECT_EQ(err(), "stepc: rank 1 of 3 failed with status 3\n");
  EXPECT_TRUE(out().ends_with("step 7\n")) << out();  // the line is ended for it
}

constexpr const char* kStops =
    "trap 'echo stopped; exit 143' TERM; trap 'exit 130' INT; touch $dir/up-$RANK\n"
    "while :; do sleep 0.01; done";

TEST_F(LocalRanksTest, ASignalIsPassedOn) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const pid_t launcher = start(plan_of(3, kStops));
    wait_for_files("up-", 3);
    ::kill(launcher, signal);
    EXPECT_EQ(status_of(launcher), 128 + signal);
    EXPECT_EQ(err(), "");
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(log(rank), "stopped\n");
      fs::remove(directory_ / str("up-{}", rank));
    }
  }
}

// Before a rank has a handler, too: it has none of the launcher's.
TEST_F(LocalRanksTest, ASignalFromTheFirstMomentOn) {
  const pid_t launcher = start(plan_of(3, "sleep 100"));
  EXPECT_TRUE(comes_true([&] { return out().starts_with("3 ranks"); }));
  ::kill(launcher, SIGTERM);
  EXPECT_EQ(status_of(launcher), 143);
  EXPECT_EQ(err(), "");
}

TEST_F(LocalRanksTest, WhoDoesNotStopIsKilled) {
  LocalRanks plan = plan_of(2,
                            "if [ $RANK = 1 ]; then trap '' TERM; fi; touch $dir/up-$RANK\n"
                            "while :; do sleep 0.1; done");
  plan.stop_grace_seconds = 0.3;
  const pid_t launcher = start(plan);
  wait_for_files("up-", 2);
  ::kill(launcher, SIGTERM);
  EXPECT_EQ(status_of(launcher), 137);
  EXPECT_EQ(err(), "stepc: rank 1 of 2 did not stop within 0.3 s of SIGTERM and was killed\n");
}

// One stops as asked, one fails to: the others have been told already, and are not told again.
TEST_F(LocalRanksTest, AFailureWhileStopping) {
  const pid_t launcher = start(plan_of(3,
                                       "n=0; trap 'n=$((n + 1))' TERM; touch $dir/up-$RANK\n"
                                       "while [ $n = 0 ]; do sleep 0.01; done\n"
                                       "[ $RANK = 1 ] && sleep 0.1 && exit 4; sleep 0.3; echo $n; exit 143"));
  wait_for_files("up-", 3);
  ::kill(launcher, SIGTERM);
  EXPECT_EQ(status_of(launcher), 4);
  EXPECT_EQ(err(), "stepc: rank 1 of 3 failed with status 4\n");
  EXPECT_EQ(log(2), "1\n");
}

TEST_F(LocalRanksTest, ASecondSignalEndsAllAtOnce) {
  const pid_t launcher = start(plan_of(2, "trap '' TERM; touch $dir/up-$RANK; while :; do :; done"));
  wait_for_files("up-", 2);
  ::kill(launcher, SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  ::kill(launcher, SIGTERM);
  EXPECT_EQ(status_of(launcher), 143);
}

TEST_F(LocalRanksTest, NoneOutlivesAKilledLauncher) {
  const pid_t launcher = start(plan_of(3, "touch $dir/up-$RANK; while :; do :; done"));
  wait_for_files("up-", 3);
  ::kill(launcher, SIGKILL);
  ::waitpid(launcher, nullptr, 0);
  EXPECT_EQ(left_groups(), std::vector<pid_t>());
}

// What a rank left behind when it ended, though it holds the pipe.
TEST_F(LocalRanksTest, NothingOutlivesItsRank) {
  const auto begin = Clock::now();
  EXPECT_EQ(run(plan_of(2, "sleep 100 & exit 0")), 0);
  EXPECT_LT(seconds_since(begin), 9);
}

TEST_F(LocalRanksTest, AProgramThatIsNotThere) {
  LocalRanks plan = plan_of(2, "");
  plan.command = {"/nowhere/stepc", "train"};
  EXPECT_EQ(run(plan), 127);
  EXPECT_NE(err().find("stepc: cannot start /nowhere/stepc: No such file or directory\n"), std::string::npos) << err();
}

TEST_F(LocalRanksTest, LogsThatCannotBeWritten) {
  LocalRanks plan = plan_of(2, "sleep 100");
  fs::create_directory(directory_ / "logs" / "rank-1.log");
  ::testing::internal::CaptureStdout();
  EXPECT_USER_ERROR(run_local_ranks(plan), "logs/rank-1.log: cannot be written: Is a directory");
  ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(left_groups(), std::vector<pid_t>());  // rank 0 had begun
}

// The port of a launch is nobody else's, and rank 0's to listen on.
TEST_F(LocalRanksTest, ThePortIsHeld) {
  const pid_t launcher = start(plan_of(2,
                                       "echo $MASTER_PORT > $dir/.$RANK; mv $dir/.$RANK $dir/port-$RANK\n"
                                       "while [ ! -e $dir/go ]; do sleep 0.01; done"));
  wait_for_files("port-", 2);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(text_of(directory_ / "port-0"))));
  const auto bind_and_listen = [&](int reuses) {
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &reuses, sizeof reuses);
    const bool done =
        ::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && ::listen(socket, 1) == 0;
    ::close(socket);
    return done;
  };
  EXPECT_FALSE(bind_and_listen(0));
  EXPECT_TRUE(bind_and_listen(1));
  std::ofstream(directory_ / "go");
  EXPECT_EQ(status_of(launcher), 0);
}

// Rank 0 writes into a pipe and still rewrites its line as wide as the terminal is.
TEST_F(LocalRanksTest, TheTerminalIsRankZeros) {
  int terminal = -1;
  const winsize size = {.ws_row = 24, .ws_col = 101, .ws_xpixel = 0, .ws_ypixel = 0};
  const pid_t launcher = ::forkpty(&terminal, nullptr, nullptr, &size);
  if (launcher == 0) ::_exit(run_local_ranks(plan_of(2, "echo \"$STEPC_LAUNCHER_COLUMNS.\"")));
  EXPECT_EQ(status_of(launcher), 0);
  ::close(terminal);
  EXPECT_EQ(log(0), "101.\n");
  EXPECT_EQ(log(1), ".\n");
}

}  // namespace
}  // namespace stepc::train
