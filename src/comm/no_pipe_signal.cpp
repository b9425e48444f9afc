#include "comm/no_pipe_signal.h"

#include <cerrno>
#include <ctime>

#include <unistd.h>

namespace stepc {

namespace {

sigset_t pipe_alone() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

bool is_pending() {
  sigset_t pending;
  return sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
}

}  // namespace

NoPipeSignal::NoPipeSignal() : was_pending_(is_pending()) {
  const sigset_t pipe = pipe_alone();
  pthread_sigmask(SIG_BLOCK, &pipe, &before_);
}

NoPipeSignal::~NoPipeSignal() {
  bool is_sent = false;
  if (!was_pending_ && is_pending()) {
    const sigset_t pipe = pipe_alone();
    const timespec at_once = {};
    siginfo_t info = {};
    while (sigtimedwait(&pipe, &info, &at_once) < 0 && errno == EINTR) continue;
    is_sent = info.si_signo == SIGPIPE && info.si_pid != getpid();  // a write's is this process's own
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  if (is_sent) kill(getpid(), SIGPIPE);
}

}  // namespace stepc
