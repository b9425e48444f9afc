// NoPipeSignal: while one lives, a write of this thread to a socket whose other end is gone is that write's error, and
// no SIGPIPE, which would end the process without a word. Gloo writes on the calling thread and on its device's, and
// asks for no such thing itself. Python ignores the signal; other programs, and `stepc train`, which takes it for a
// reader of its output that went away, do not.
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
