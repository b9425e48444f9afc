// Shadow runs: the program's host code of an event (an optimizer's step()) runs again, before a replay, without its
// kernels. Its host state advances as in eager, and the numbers that it passes to its calls go into the replay.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <ATen/core/ivalue.h>

#include "ir/trace.h"

namespace stepc {

// Where the shadow run puts a number (or a list of numbers, or a 0-dim number tensor): argument `arg` of `call`.
using SupplyFn = std::function<void(CallId call, size_t arg, const c10::IValue& number)>;

class Shadow {
 public:
  // For the event `index` of `trace`, both of which must outlive this.
  Shadow(const Trace& trace, size_t index);
  ~Shadow();
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;

  // Runs `host_code` on the calling thread. Returns what its calls did otherwise than recorded, empty if nothing; the
  // numbers supplied until then are worthless. What `host_code` throws passes through.
  std::string run(const std::function<void()>& host_code, const SupplyFn& supply);

 private:
  class Observer;
  std::shared_ptr<Observer> observer_;
};

// A tensor that looks like `value` and has no memory: a stand-in for a gradient in a shadow run.
at::Tensor stand_in(const Trace& trace, const Value& value);

}  // namespace stepc
