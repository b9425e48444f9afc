// Shadow runs: before a replay, an event's host code (an optimizer's step()) runs again without its kernels. Its host
// state advances as in eager, and the numbers that it passes to its calls go into the replay.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <ATen/core/ivalue.h>

#include "ir/trace.h"

namespace stepc {

// Receives a number (or a list of numbers, or a 0-dim number tensor) of the shadow run: argument `arg` of `call`.
using SupplyFn = std::function<void(CallId call, size_t arg, const c10::IValue& number)>;

class Shadow {
 public:
  // For the event `index` of `trace`. The trace must outlive this object.
  Shadow(const Trace& trace, size_t index);
  ~Shadow();
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;

  // Runs `host_code` on the calling thread. Returns the difference between its calls and the recorded ones, empty if
  // there is none; after a difference the supplied numbers are invalid. Exceptions of `host_code` pass through.
  std::string run(const std::function<void()>& host_code, const SupplyFn& supply);

 private:
  class Observer;
  std::shared_ptr<Observer> observer_;
};

// A tensor that looks like `value` and has no memory: a stand-in for a gradient in a shadow run.
at::Tensor stand_in(const Trace& trace, const Value& value);

}  // namespace stepc
