// A host event beside runs of its plan: an optimizer's step() gives the numbers of this call without its kernels. They
// follow from its options and count if these are known (engine/program/known_update.h); otherwise its host code runs as
// a shadow. Borrows the trace.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capture/shadow.h"
#include "capture/tracer.h"
#include "engine/program/known_update.h"
#include "engine/program/program.h"
#include "ir/trace.h"

namespace stepc {

// Gives a parameter another gradient, or none.
void set_gradient(const at::Tensor& parameter, const at::Tensor& gradient);

class EventUpdate {
 public:
  // `keys`: the program's. The tensors of a run are in the order of the keys, then come the batch's.
  EventUpdate(const Trace& trace, size_t event, const std::vector<OwnedKey>& keys);

  using HandOn = std::function<void(const HostSupply& number, bool is_new)>;
  // Passes the event's numbers to `hand_on` and increments its count. Returns the difference between its calls and the
  // recorded ones, empty if there is none. `before_host_code` is called before the program's own code runs, if it must
  // run. `learns`: this is the plan's own run, and the next one may use what it learns.
  std::string run(Program& program, const std::vector<at::Tensor>& tensors, bool learns,
                  const std::function<void()>& before_host_code, const HandOn& hand_on);
  // Events that were replayed without their host code.
  [[nodiscard]] int64_t known_updates() const { return known_updates_; }

  // As in KnownUpdate.
  void doubt() { known_.doubt(); }
  void set_stale() { known_.set_stale(); }
  // The places, among the tensors, of what the event's own calls write.
  [[nodiscard]] const std::vector<size_t>& counters() const { return counters_; }

 private:
  struct Gradient {
    size_t parameter = 0;  // its place
    at::Tensor stand_in;   // the gradient that the event finds; undefined: none
  };
  std::string shadow(const std::vector<at::Tensor>& tensors, const std::function<void()>& host_code,
                     const SupplyFn& supply);

  std::string key_;
  Shadow shadow_;
  std::vector<Gradient> gradients_;  // of all parameters
  std::vector<size_t> counters_;
  KnownUpdate known_;
  int64_t known_updates_ = 0;
};

}  // namespace stepc
