// NoPipeSignal: while one lives, a write of this thread to a socket whose other end is gone returns an error and raises
// no SIGPIPE, which would end the process without a message. Gloo writes on the calling thread and on its device's
// thread, and does not block the signal itself. Python ignores the signal; other programs do not, nor does `stepc
// train`, for which the signal means that the reader of its output is gone.
//
// Threads that are started meanwhile never get one. A SIGPIPE that another process sends arrives at the end.
#pragma once

#include <csignal>

namespace stepc {

class NoPipeSignal {
 public:
  NoPipeSignal();
  ~NoPipeSignal();
  NoPipeSignal(const NoPipeSignal&) = delete;
  NoPipeSignal& operator=(const NoPipeSignal&) = delete;

 private:
  sigset_t before_;           // the signals that the thread had blocked
  bool was_pending_ = false;  // for a thread that had the signal blocked
};

}  // namespace stepc
