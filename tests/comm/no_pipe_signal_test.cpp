#include "comm/no_pipe_signal.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <optional>
#include <thread>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace stepc {
namespace {

std::atomic<int> arrived = 0;

// Counts what arrives while it lives.
class Counted {
 public:
  Counted() {
    arrived = 0;
    struct sigaction action = {};
    action.sa_handler = [](int) { ++arrived; };
    sigaction(SIGPIPE, &action, &before_);
  }
  ~Counted() { sigaction(SIGPIPE, &before_, nullptr); }
  Counted(const Counted&) = delete;

 private:
  struct sigaction before_ = {};
};

// errno of a write to a socket whose other end is gone.
int error_of_a_write() {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  close(ends[1]);
  errno = 0;
  EXPECT_LT(write(ends[0], "x", 1), 0);
  const int error = errno;
  close(ends[0]);
  return error;
}

void send_from_another_process() {
  const pid_t to = getpid();
  const pid_t sender = fork();
  if (sender == 0) _exit(kill(to, SIGPIPE));
  int status = 1;
  waitpid(sender, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(NoPipeSignal, AWriteToNobodyIsAnError) {
  const Counted counted;
  {
    const NoPipeSignal none;
    EXPECT_EQ(error_of_a_write(), EPIPE);
    EXPECT_EQ(error_of_a_write(), EPIPE);
  }
  EXPECT_EQ(arrived, 0);
  EXPECT_EQ(error_of_a_write(), EPIPE);
  EXPECT_EQ(arrived, 1) << "as before again";
}

TEST(NoPipeSignal, ThreadsThatAreStartedMeanwhileGetNone) {
  const Counted counted;
  std::atomic<bool> ended = false;
  std::optional<std::thread> thread;
  {
    const NoPipeSignal none;
    thread.emplace([&] {
      while (!ended) std::this_thread::yield();
      EXPECT_EQ(error_of_a_write(), EPIPE);
    });
  }
  ended = true;
  thread->join();
  EXPECT_EQ(arrived, 0);
}

TEST(NoPipeSignal, WhatAnotherProcessSendsArrives) {
  const Counted counted;
  {
    const NoPipeSignal none;
    send_from_another_process();
    EXPECT_EQ(error_of_a_write(), EPIPE);
  }
  EXPECT_EQ(arrived, 1);
}

TEST(NoPipeSignal, WhatWasPendingStaysSo) {
  const Counted counted;
  sigset_t pipe, before, pending;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, &before);
  EXPECT_EQ(error_of_a_write(), EPIPE);
  { const NoPipeSignal none; }
  sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 1);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(arrived, 1);
}

}  // namespace
}  // namespace stepc
