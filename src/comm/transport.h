// Transport: makes a c10d backend, which moves tensors, from some ranks. The CPU's is the only one; one for another
// device would stand beside it without a change above it.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace stepc {

class Transport {
 public:
  virtual ~Transport() = default;
  // Called by all `ranks` of a group with a store that only they share. Exceptions of c10d pass through.
  virtual c10::intrusive_ptr<c10d::Backend> connect(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank,
                                                    int64_t ranks, std::chrono::milliseconds timeout) = 0;
  // Whether it accepts connections, as it does from its construction.
  virtual void listen(bool hears) = 0;
};

// For tensors on the CPU. Listens only at `address`, one of this machine's, on a port that the system chooses. Throws
// UserError if LibTorch is not the build that this was compiled for, or the address is not this machine's.
std::unique_ptr<Transport> cpu_transport(const std::string& address);

}  // namespace stepc
