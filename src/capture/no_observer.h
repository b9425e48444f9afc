// A scope in which the calling thread has no observer (capture/observer.h), whatever it had before.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

namespace stepc {

class NoObserverScope {
 public:
  NoObserverScope();

 private:
  c10::DebugInfoGuard slot_;
};

}  // namespace stepc
