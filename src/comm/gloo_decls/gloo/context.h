// Stands for the header of this name that the torch wheel lacks (see rendezvous/store.h). c10d's header calls these
// two; libtorch_cpu defines them.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
  std::chrono::milliseconds getTimeout() const;
};

}  // namespace gloo
